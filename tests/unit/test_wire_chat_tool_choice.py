"""Which tools a reply must, may or must not call."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.wire.chat_tool_choice import checked_choice

TOOLS = tuple({"type": "function", "function": {"name": name}} for name in ("a", "b", "c"))


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def subset(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("abc", "auto", ())),
        ("auto", ("abc", "auto", ())),
        ("none", ("abc", "none", ())),
        ("required", ("abc", "required", ())),
        (named("b"), ("abc", "required", ("b",))),
        (subset("required", "a", "b"), ("abc", "required", ("a", "b"))),
        # None need be called: what may not be is not shown, and nothing is enforced.
        (subset("auto", "c", "a"), ("ac", "auto", ())),
        (subset("auto", "a", "b", "c"), ("abc", "auto", ())),
    ],
)
def test_choices(choice: Any, expected: tuple[str, str, tuple[str, ...]]) -> None:
    tools, mode, allowed = checked_choice(choice, TOOLS)
    assert ("".join(tool["function"]["name"] for tool in tools), mode, allowed) == expected


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("maybe", "tool_choice"),
        (named("d"), "tool_choice"),
        (subset("auto", "a", "d"), "tool_choice"),
        ({"type": "function"}, "tool_choice.function.name"),
        ({"type": "function", "function": {"name": 3}}, "tool_choice.function.name"),
        ({"type": "custom"}, "tool_choice.type"),
        (subset("none", "a"), "tool_choice.allowed_tools.mode"),
        (subset("auto"), "tool_choice.allowed_tools.tools"),
        (subset("required"), "tool_choice.allowed_tools.tools"),
        (subset("required", ""), "tool_choice.allowed_tools.tools[0].function.name"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
    ],
)
def test_what_cannot_be_done_is_said(choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked_choice(choice, TOOLS)
    assert caught.value.param == param


@pytest.mark.parametrize("choice", ["required", named("a"), subset("auto", "a")])
def test_without_tools_none_can_be_called(choice: Any) -> None:
    with pytest.raises(InvalidRequest, match="'tools'"):
        checked_choice(choice, ())
