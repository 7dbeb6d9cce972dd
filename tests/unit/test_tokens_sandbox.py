"""Whatever templates read, jinja2's own sandbox gives the same."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.tokens.sandbox import Sandbox

KEYS = ["role", "content", "items", "keys", "get", "pop", "format", "_x", "__class__", "0", "it's"]
NAMES = [key for key in KEYS if key.isidentifier()]

plain = st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["", "a", "{0}"])
values = st.recursive(
    plain,
    lambda held: (
        st.lists(held, max_size=2)
        | st.dictionaries(st.sampled_from(KEYS), held, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS), held, max_size=2).map(OrderedDict)
    ),
    max_leaves=8,
)
reads = st.lists(
    st.sampled_from([f".{name}" for name in NAMES])
    | st.sampled_from(KEYS).map(lambda key: f"[{key!r}]")
    | st.sampled_from(["[0]", "[key]", ".items()", ".get('role')", "['format']('x')"]),
    min_size=1,
    max_size=3,
).map("".join)


def rendered(environment: jinja2.Environment, source: str, **names: Any) -> tuple[str, str]:
    try:
        text = environment.from_string(source).render(**names)
        return "text", re.sub("0x[0-9a-f]+", "0x", text)
    except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
        return type(error).__name__, str(error)


@given(values, reads, st.sampled_from(KEYS))
def test_what_is_read_is_what_the_librarys_sandbox_reads(value: Any, read: str, key: str) -> None:
    named = {"it": value, "key": key}
    for form in ("{{ it%s }}", "{{ it%s is defined }}", "{% if it%s %}a{% endif %}",
                 "{{ it%s | default('d', true) | string }}",
                 "{% for one in [it, it] %}{{ one%s }};{% endfor %}",
                 "{% macro m(one) %}{{ one%s }}{% endmacro %}{{ m(it) }}{{ m(nothing) }}",
                 "{% for one in [it] if one%s %}a{% endfor %}",
                 "{% for one in [it] recursive %}{{ one%s }}{{ loop([]) }}{% endfor %}",
                 "{% set kept %}{{ it%s }}{% endset %}{{ kept }}",
                 "{{ it%s ~ it%s }}{{ it%s == it%s }}{{ it%s if it%s else key }}",
                 "{% set ns = namespace(one=it) %}{{ ns.one%s }}{{ [it][0]%s }}"):  # fmt: skip
        source = form.replace("%s", read)
        wanted = rendered(ImmutableSandboxedEnvironment(), source, **named)
        assert rendered(Sandbox(), source, **named) == wanted


@pytest.mark.parametrize(
    "source",
    [
        "{{ it.role.__class__.__mro__ }}",
        "{{ it['role']['__class__']['__mro__'] }}",
        "{{ it.__class__.__mro__ }}",
        "{{ it['__init__'].__globals__ }}",
        "{{ it.pop('role') }}",
        "{{ it.update({'role': 'b'}) }}",
        "{{ it['clear']() }}",
        "{{ it.said.append('b') }}",
    ],
)
def test_what_is_unsafe_stays_out_of_reach(source: str) -> None:
    it = {"role": "a", "said": ["a"]}
    with pytest.raises(jinja2.exceptions.SecurityError):
        Sandbox().from_string(source).render(it=it)
    assert it == {"role": "a", "said": ["a"]}


def test_what_is_missing_says_so_by_its_name() -> None:
    with pytest.raises(jinja2.UndefinedError, match="'dict object' has no attribute 'b'"):
        Sandbox().from_string("{{ it.a.b.c }}").render(it={"a": {}})
    with pytest.raises(jinja2.UndefinedError, match="'it' is undefined"):
        Sandbox().from_string("{{ it.a.b }}").render()
