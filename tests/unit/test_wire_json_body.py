"""How deeply the JSON of a request may be nested."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.wire.json_body import check_depth


def nested(depth: int, *, in_lists: bool) -> Any:
    """A text inside so many objects or arrays, each with something flat beside it."""
    value: Any = "text"
    for _ in range(depth):
        value = ["flat", value] if in_lists else {"flat": 1, "deep": value}
    return value


@pytest.mark.parametrize("in_lists", [True, False])
def test_a_hundred_holders_in_one_another_are_enough(in_lists: bool) -> None:
    check_depth(nested(100, in_lists=in_lists), "tools[0]")
    with pytest.raises(InvalidRequest) as refused:
        check_depth(nested(101, in_lists=in_lists), "tools[0]")
    assert refused.value.param == "tools[0]"


def test_what_is_wide_is_not_deep() -> None:
    check_depth([{"a": [1, {"b": [n]}]} for n in range(1000)], "tools")
    for flat in ("text", 1, None, True, [], {}):
        check_depth(flat, "tools")
