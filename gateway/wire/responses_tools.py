"""Tools of the Responses API in the form that templates know, and what calls look like to clients.

Function tools are served. Tools that the original runs itself (web search and the like) cannot be
run here; agents that offer them always also offer functions, so they are left out. A namespace is
a group of functions; its functions are offered one by one, and calls name their namespace again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.wire.json_body import check_depth, invalid

_MOST_TOOLS = 512
_LEFT_OUT = (
    "apply_patch", "code_interpreter", "computer", "computer_use_preview", "custom",
    "file_search", "image_generation", "local_shell", "mcp", "shell", "tool_search",
    "web_search", "web_search_preview",
)  # fmt: skip
_VERSIONED = ("web_search_preview_", "web_search_")


def function_tools(
    tools: Sequence[dict[str, Any]],
) -> tuple[tuple[Mapping[str, Any], ...], dict[str, str]]:
    """(functions in chat form, the namespace of each function that has one)."""
    if len(tools) > _MOST_TOOLS:
        raise invalid("tools", f"at most {_MOST_TOOLS} tools are allowed", "array_above_max_length")
    functions: dict[str, Mapping[str, Any]] = {}
    spaces: dict[str, str] = {}
    grouped: list[tuple[str, Mapping[str, Any]]] = []
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        kind = tool.get("type")
        if kind == "function":
            name = _text(tool, "name", at, needed=True)
            functions[name] = _function(tool, at)
        elif kind == "namespace":
            space = _text(tool, "name", at, needed=True)
            grouped += [(space, inner) for inner in _inner(tool, at)]
        elif kind is None:
            raise invalid(f"{at}.type", "expected a string", "missing_required_parameter")
        elif kind not in _LEFT_OUT and not str(kind).startswith(_VERSIONED):
            raise invalid(f"{at}.type", "supported values are 'function' and 'namespace'")
    for space, inner in grouped:
        name = inner["function"]["name"]
        if name not in functions:
            functions[name] = inner
            spaces[name] = space
    if len(functions) > _MOST_TOOLS:
        raise invalid("tools", f"at most {_MOST_TOOLS} tools are allowed", "array_above_max_length")
    return tuple(functions.values()), spaces


def in_chat_form(choice: str | Mapping[str, Any] | None) -> str | Mapping[str, Any] | None:
    """A `tool_choice` as chat completions write it, where it names functions. Pure renaming."""
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") == "function":
        return _named(choice)
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        if isinstance(tools, list):
            tools = [_named(tool) if isinstance(tool, Mapping) else tool for tool in tools]
        inner = {"mode": choice.get("mode"), "tools": tools}
        return {"type": "allowed_tools", "allowed_tools": inner}
    return choice


def _named(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.get("name")}}


def flat(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function tool as the Responses API writes it."""
    function = tool.get("function") or {}
    return {
        "type": "function",
        "name": function.get("name"),
        "description": function.get("description"),
        "parameters": function.get("parameters"),
        "strict": bool(function.get("strict", False)),
    }


def _inner(tool: Mapping[str, Any], at: str) -> list[Mapping[str, Any]]:
    """The functions of a namespace; what else it holds cannot be called here."""
    tools = tool.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(inner, dict) for inner in tools):
        raise invalid(f"{at}.tools", "expected an array of objects", "invalid_type")
    return [
        _function(inner, f"{at}.tools[{index}]")
        for index, inner in enumerate(tools)
        if inner.get("type") == "function"
    ]


def _function(tool: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    check_depth(tool, at)
    function: dict[str, Any] = {"name": _text(tool, "name", at, needed=True)}
    if description := _text(tool, "description", at):
        function["description"] = description
    parameters = tool.get("parameters")
    if parameters is not None:
        if not isinstance(parameters, dict):
            raise invalid(f"{at}.parameters", "expected an object", "invalid_type")
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def _text(holder: Mapping[str, Any], key: str, at: str, *, needed: bool = False) -> str:
    value = holder.get(key)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or (needed and not value):
        code = "missing_required_parameter" if value is None else "invalid_type"
        raise invalid(f"{at}.{key}", "expected a string", code)
    return value
