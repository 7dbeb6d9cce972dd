"""Which tools a reply must, may or must not call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.wire.json_body import invalid

_AT = "tool_choice"

Tools = tuple[Mapping[str, Any], ...]


def checked_choice(
    choice: str | Mapping[str, Any] | None, tools: Tools
) -> tuple[Tools, str, tuple[str, ...]]:
    """(tools, `auto`, `none` or `required`, the names of which a call must be; none means any).

    A model that may call some tools and need not call any is shown those alone: what it samples is
    then bound by nothing, and can be learned from.
    """
    if choice is None or choice in ("auto", "none"):
        return tools, str(choice or "auto"), ()
    mode = "required"
    if isinstance(choice, str):
        if choice != "required":
            raise invalid(_AT, "supported values are 'auto', 'none' and 'required'")
        allowed: tuple[str, ...] = ()
    elif choice.get("type") == "function":
        allowed = (_name(choice, _AT),)
    elif choice.get("type") == "allowed_tools":
        mode, allowed = _allowed(choice.get("allowed_tools"))
    else:
        raise invalid(f"{_AT}.type", "supported values are 'function' and 'allowed_tools'")
    if not tools:
        raise invalid(_AT, "only allowed when 'tools' are specified")
    known = {tool["function"]["name"] for tool in tools}
    if unknown := [name for name in allowed if name not in known]:
        raise invalid(_AT, f"there is no tool {unknown[0]!r} in 'tools'")
    if mode == "auto":
        return tuple(tool for tool in tools if tool["function"]["name"] in allowed), mode, ()
    return tools, mode, allowed


def _allowed(value: object) -> tuple[str, tuple[str, ...]]:
    at = f"{_AT}.allowed_tools"
    if not isinstance(value, Mapping) or not isinstance(listed := value.get("tools"), list):
        raise invalid(at, "expected an object with an array of tools", "invalid_type")
    mode = value.get("mode")
    if mode not in ("auto", "required"):
        raise invalid(f"{at}.mode", "supported values are 'auto' and 'required'")
    if not listed:
        raise invalid(f"{at}.tools", "expected at least one tool", "empty_array")
    names = tuple(_name(tool, f"{at}.tools[{index}]") for index, tool in enumerate(listed))
    return str(mode), names


def _name(tool: object, at: str) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise invalid(f"{at}.function.name", "expected the name of a tool")
    return name
