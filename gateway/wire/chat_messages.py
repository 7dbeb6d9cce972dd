"""Checks of chat messages and tools: after them, the shapes that records promise hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import InvalidRequest
from gateway.records import Message
from gateway.wire.json_body import check_depth, invalid, unsupported

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "file": "file",
    "video_url": "video",
}


def checked_messages(messages: Sequence[dict[str, Any]], max_messages: int) -> tuple[Message, ...]:
    """The messages, unchanged. Unknown keys stay, since a template may read them."""
    if not messages:
        raise InvalidRequest(
            "Invalid 'messages': empty array. Expected an array with minimum length 1.",
            param="messages",
            code="empty_array",
        )
    if len(messages) > max_messages:
        raise invalid(
            "messages", f"at most {max_messages} messages are allowed", "array_above_max_length"
        )
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")
    return tuple(messages)


def checked_tools(tools: Sequence[dict[str, Any]], most: int) -> tuple[Mapping[str, Any], ...]:
    """Function tools, unchanged."""
    if len(tools) > most:
        raise invalid("tools", f"at most {most} tools are allowed", "array_above_max_length")
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if tool.get("type") != "function":
            raise unsupported(f"{at}.type", "Only tools of type 'function' are supported.")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise invalid(f"{at}.function", "expected an object", "invalid_type")
        _text(function, "name", f"{at}.function", needed=True)
        _text(function, "description", f"{at}.function")
        if not isinstance(function.get("parameters") or {}, dict):
            raise invalid(f"{at}.function.parameters", "expected an object", "invalid_type")
        check_depth(tool, at)
    return tuple(tools)


def _check_message(message: dict[str, Any], at: str) -> None:
    role = message.get("role")
    if role is None:
        raise _missing(f"{at}.role")
    if role not in _ROLES:
        raise invalid(f"{at}.role", f"supported values are {', '.join(map(repr, _ROLES))}")
    content = message.get("content")
    if content is None:
        if role not in ("assistant", "function"):
            raise _missing(f"{at}.content")
    elif isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, f"{at}.content[{index}]", role)
    elif not isinstance(content, str):
        raise invalid(f"{at}.content", "expected a string or an array of parts", "invalid_type")
    if role == "assistant":
        _check_calls(message, at)
    elif message.get("tool_calls"):
        raise invalid(f"{at}.tool_calls", "only assistant messages call tools")
    _text(message, "tool_call_id", at, needed=role == "tool")
    _text(message, "name", at, needed=role == "function")
    check_depth(message, at)


def _check_part(part: object, at: str, role: str) -> None:
    if not isinstance(part, dict):
        raise invalid(at, "expected an object", "invalid_type")
    kind = part.get("type")
    if kind == "text" or (kind == "refusal" and role == "assistant"):
        _text(part, kind, at, needed=True)
    elif isinstance(kind, str) and kind in _MEDIA:
        raise InvalidRequest(
            f"This model does not take {_MEDIA[kind]} content.",
            param=f"{at}.type",
            code="unsupported_content",
        )
    else:
        raise invalid(f"{at}.type", "supported values are 'text'")


def _check_calls(message: dict[str, Any], at: str) -> None:
    calls = message.get("tool_calls")
    if calls is None:
        calls = []
    if not isinstance(calls, list):
        raise invalid(f"{at}.tool_calls", "expected an array", "invalid_type")
    for index, call in enumerate(calls):
        here = f"{at}.tool_calls[{index}]"
        if not isinstance(call, dict):
            raise invalid(here, "expected an object", "invalid_type")
        if call.get("type", "function") != "function":
            raise unsupported(f"{here}.type", "Only tool calls of type 'function' are supported.")
        _text(call, "id", here, needed=True)
        _check_function(call.get("function"), f"{here}.function")
    if message.get("function_call") is not None:
        _check_function(message["function_call"], f"{at}.function_call")


def _check_function(function: object, at: str) -> None:
    if not isinstance(function, dict):
        raise invalid(at, "expected an object", "invalid_type")
    _text(function, "name", at, needed=True)
    _text(function, "arguments", at, needed=True)


def _text(holder: Mapping[str, Any], key: str, at: str, *, needed: bool = False) -> None:
    value = holder.get(key)
    if value is None:
        if needed:
            raise _missing(f"{at}.{key}")
    elif not isinstance(value, str):
        raise invalid(f"{at}.{key}", "expected a string", "invalid_type")


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )
