from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.json_prefix import JsonPrefix

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text("ab\\\"'\n é"), JSON, max_size=4)


def refuse(constant: str) -> None:
    raise ValueError(constant)


def decoded(text: str) -> Any:
    """Strict JSON, or None."""
    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError:
        return None


def completed(pieces: list[str]) -> tuple[str, list[str]]:
    """(the whole, what was shown after each piece)."""
    prefix = JsonPrefix("RAW")
    shown = [prefix.feed(piece) for piece in pieces]
    return "".join(shown) + prefix.finish(), shown


def cut(text: str, places: list[int]) -> list[str]:
    marks = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(marks)]


PLACES = st.lists(st.integers(0, 200), max_size=8)


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]), PLACES)
def test_an_object_is_itself_however_it_is_cut(
    value: dict[str, Any], ascii_only: bool, indent: int | None, places: list[int]
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    whole, shown = completed(cut(text, places))
    assert whole == text
    # Nothing but the end of a scalar or an escape, and the last brace, is kept waiting.
    assert len("".join(shown)) == len(text) - 1


@given(OBJECTS, st.data())
def test_whatever_is_written_becomes_an_object(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False)
    at = data.draw(st.integers(0, len(text)))
    junk = data.draw(st.text("{}[]\",:'\\ntrue01.e-+ \nx", max_size=6))
    broken = text[:at] + junk + text[at + data.draw(st.integers(0, 3)) :]
    if data.draw(st.booleans()):
        broken = broken[: data.draw(st.integers(0, len(broken)))]
    places = data.draw(PLACES)
    whole, _ = completed(cut(broken, places))
    meant = decoded(broken)
    if isinstance(meant, dict):
        assert decoded(whole) == meant
    elif not broken.strip():
        assert whole == ""
    else:
        assert decoded(whole)["RAW"] == broken
    assert whole == completed([broken])[0]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", ""),
        (" \n", ""),
        (" [1]", '{"RAW":" [1]"}'),
        ("{}", "{}"),
        ("{", '{"RAW":"{"}'),
        ('{"a"', '{"a":null,"RAW":"{\\"a\\""}'),
        ('{"a":1,', '{"a":1,"RAW":"{\\"a\\":1,"}'),
        ('{"a":[{"b":1,', '{"a":[{"b":1,"":null}],"RAW":"{\\"a\\":[{\\"b\\":1,"}'),
        ('{"a":[1,', '{"a":[1,null],"RAW":"{\\"a\\":[1,"}'),
        ('{"a":[', '{"a":[],"RAW":"{\\"a\\":["}'),
        ('{"a":12', '{"a":null,"RAW":"{\\"a\\":12"}'),
        ('{"a":"\\u00e', '{"a":"","RAW":"{\\"a\\":\\"\\\\u00e"}'),
        ('{"a":"x\ny"}', '{"a":"x","RAW":"{\\"a\\":\\"x\\ny\\"}"}'),
        ('{"a":1} x', '{"a":1,"RAW":"{\\"a\\":1} x"}'),
        ("{} {}", '{"RAW":"{} {}"}'),
        ('{"a":01}', '{"a":null,"RAW":"{\\"a\\":01}"}'),
        ('{"a":NaN}', '{"a":null,"RAW":"{\\"a\\":NaN}"}'),
        ('{"a":[1}', '{"a":[1],"RAW":"{\\"a\\":[1}"}'),
        ('{"a":{]', '{"a":{},"RAW":"{\\"a\\":{]"}'),
        ('{,"a":1}', '{"RAW":"{,\\"a\\":1}"}'),
    ],
)  # fmt: skip
def test_how_each_break_is_closed(text: str, whole: str) -> None:
    assert completed(list(text))[0] == whole
