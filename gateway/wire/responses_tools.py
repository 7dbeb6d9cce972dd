"""Tools of the Responses API in the form that templates know, and what calls look like to clients.

Function tools are served. Tools that the original runs itself (web search and the like) cannot be
run here; agents that offer them always also offer functions, so they are left out. A namespace is
a group of functions; its functions are offered one by one, and calls name their namespace again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.wire.json_body import (
    check_depth,
    invalid,
    missing,
    optional_text_in,
    text_in,
)
from gateway.wire.request_fields import MOST_TOOLS

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
    if len(tools) > MOST_TOOLS:
        raise invalid("tools", f"at most {MOST_TOOLS} tools are allowed", "array_above_max_length")
    functions: dict[str, Mapping[str, Any]] = {}
    grouped: list[Mapping[str, Any]] = []
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        kind = tool.get("type")
        if kind == "function":
            name = _name(tool, at)
            functions[name] = _function(tool, at)
        elif kind == "namespace":
            _name(tool, at)
            grouped += _inner(tool, at)
        elif kind is None:
            raise missing(f"{at}.type")
        elif kind not in _LEFT_OUT and not str(kind).startswith(_VERSIONED):
            raise invalid(f"{at}.type", "supported values are 'function' and 'namespace'")
    for inner in grouped:
        functions.setdefault(inner["function"]["name"], inner)
    if len(functions) > MOST_TOOLS:
        raise invalid("tools", f"at most {MOST_TOOLS} tools are allowed", "array_above_max_length")
    return tuple(functions.values()), namespaces_of(tools)


def namespaces_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The namespace of each function that has one; those without go before others of the name."""
    own = {tool["name"] for tool in tools if tool.get("type") == "function"}
    spaces: dict[str, str] = {}
    for tool in tools:
        if tool.get("type") == "namespace":
            for inner in tool.get("tools") or ():
                if inner.get("type") == "function" and inner["name"] not in own:
                    spaces.setdefault(inner["name"], tool["name"])
    return spaces


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
    function: dict[str, Any] = {"name": _name(tool, at)}
    if description := optional_text_in(tool, "description", at):
        function["description"] = description
    parameters = tool.get("parameters")
    if parameters is not None:
        if not isinstance(parameters, dict):
            raise invalid(f"{at}.parameters", "expected an object", "invalid_type")
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def _name(tool: Mapping[str, Any], at: str) -> str:
    name = text_in(tool, "name", at)
    if not name:
        raise invalid(f"{at}.name", "expected a string of at least 1 character")
    return name
