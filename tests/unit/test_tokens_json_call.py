"""Where the arguments of a call end, and how its name is spelled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.formats.json_call import object_end, spelled_name

texts = st.text(st.sampled_from('{}"\\a\n é'), max_size=8)
objects = st.dictionaries(
    texts,
    st.recursive(texts | st.integers(), lambda held: st.dictionaries(texts, held)),
    max_size=3,
)


@given(texts, objects, texts, st.sampled_from([None, 1]), st.booleans())
def test_an_object_ends_at_its_own_brace(
    before: str, held: dict[str, object], after: str, indent: int | None, escaped: bool
) -> None:
    written = json.dumps(held, indent=indent, ensure_ascii=escaped)
    assert object_end(before + written + after, len(before)) == len(before) + len(written)
    for end in range(len(written)):
        assert object_end(before + written[:end], len(before)) is None


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("read_file", "read_file"),
        ("naïve", "naïve"),
        ("mcp__a-b.c", "mcp__a-b.c"),
        (r"na\u00efve", "naïve"),
        (r"a\"b", 'a"b'),
        (" ", None),
        ("", None),
        ("a\nb", None),
        (r"a\x", None),
    ],
)
def test_a_name_is_read_as_json_spells_it(raw: str, name: str | None) -> None:
    assert spelled_name(raw) == name
