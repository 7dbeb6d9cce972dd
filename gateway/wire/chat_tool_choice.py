"""Which tools a reply must, may or must not call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.wire.json_body import invalid, unsupported

_AT = "tool_choice"


def checked_choice(
    choice: str | Mapping[str, Any] | None, tools: Sequence[Mapping[str, Any]]
) -> tuple[str, tuple[str, ...]]:
    """(`auto`, `none` or `required`, the names that may be called; none means all of them)."""
    if choice is None or choice in ("auto", "none"):
        return str(choice or "auto"), ()
    if isinstance(choice, str):
        if choice != "required":
            raise invalid(_AT, "supported values are 'auto', 'none' and 'required'")
        allowed: tuple[str, ...] = ()
    elif choice.get("type") == "function":
        allowed = (_name(choice, _AT),)
    elif choice.get("type") == "allowed_tools":
        allowed = _allowed(choice.get("allowed_tools"))
    else:
        raise invalid(f"{_AT}.type", "supported values are 'function' and 'allowed_tools'")
    if not tools:
        raise invalid(_AT, "only allowed when 'tools' are specified")
    known = {tool["function"]["name"] for tool in tools}
    if unknown := [name for name in allowed if name not in known]:
        raise invalid(_AT, f"there is no tool {unknown[0]!r} in 'tools'")
    return "required", allowed


def _allowed(value: object) -> tuple[str, ...]:
    at = f"{_AT}.allowed_tools"
    if not isinstance(value, Mapping) or not isinstance(listed := value.get("tools"), list):
        raise invalid(at, "expected an object with an array of tools", "invalid_type")
    if value.get("mode") != "required":
        raise unsupported(f"{at}.mode", "Only the mode 'required' is supported.")
    if not listed:
        raise invalid(f"{at}.tools", "expected at least one tool", "empty_array")
    return tuple(_name(tool, f"{at}.tools[{index}]") for index, tool in enumerate(listed))


def _name(tool: object, at: str) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise invalid(f"{at}.function.name", "expected the name of a tool")
    return name
