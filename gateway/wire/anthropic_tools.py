"""Tools of Anthropic's Messages API, and the choice among them, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.wire.anthropic_blocks import wrong
from gateway.wire.anthropic_client_tools import CLIENT_TOOLS
from gateway.wire.json_body import check_depth
from gateway.wire.request_fields import MOST_TOOLS


def converted_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Tools in OpenAI form: their name, description and schema."""
    if len(tools) > MOST_TOOLS:
        raise wrong("tools", f"at most {MOST_TOOLS} tools are allowed")
    return tuple(_tool(tool, f"tools.{index}") for index, tool in enumerate(tools))


def _tool(tool: Mapping[str, Any], at: str) -> dict[str, Any]:
    kind, schema = tool.get("type"), tool.get("input_schema")
    if kind not in (None, "custom") and schema is None:
        return _known(tool, at)
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not name:
        raise wrong(f"{at}.name", "expected a string of at least 1 character")
    if description is not None and not isinstance(description, str):
        raise wrong(f"{at}.description", "expected a string")
    if not isinstance(schema, dict):
        raise wrong(f"{at}.input_schema", "expected an object")
    check_depth(schema, f"{at}.input_schema")
    return _function(name, description or "", schema)


def _known(tool: Mapping[str, Any], at: str) -> dict[str, Any]:
    """A tool that its type says all of."""
    kind = tool["type"]
    known = CLIENT_TOOLS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise wrong(
            f"{at}.type", "only tools that the client runs are supported", "unsupported_parameter"
        )
    if tool.get("name") != known.name:
        raise wrong(f"{at}.name", f"expected '{known.name}'")
    return _function(known.name, known.description, known.schema)


def _function(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def converted_choice(
    choice: Mapping[str, Any] | None, tools: Sequence[Mapping[str, Any]]
) -> tuple[str, tuple[str, ...]]:
    """(`auto`, `none` or `required`, the names that may be called; none means all of them)."""
    at, kind = "tool_choice", (choice or {}).get("type", "auto")
    if kind in ("auto", "none"):
        return kind, ()
    if kind not in ("any", "tool"):
        raise wrong(f"{at}.type", "expected one of 'auto', 'any', 'tool', 'none'")
    if not tools:
        raise wrong(at, "may only be specified while providing tools")
    if choice is None or kind == "any":
        return "required", ()
    name = choice.get("name")
    if name not in [tool["function"]["name"] for tool in tools]:
        raise wrong(f"{at}.name", "expected the name of one of the tools")
    return "required", (str(name),)
