"""Checks of chat messages and tools: after them, the shapes that records promise hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.errors import InvalidRequest
from gateway.wire.json_body import (
    check_depth,
    invalid,
    missing,
    optional_text_in,
    text_in,
    unsupported,
)
from gateway.wire.media import MediaReader, refused

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SPEAKERS = ("user", "assistant", "system", "developer")
_MEDIA = {"image_url": "image", "input_image": "image", "input_audio": "audio"}
_NO_MEDIA = {"file": "file", "video_url": "video"}
_SHOWN_BY = ("user", "tool")
#: Of a tool: its type and its function.
_USUAL_KEYS = 2
_CALL_KEYS, _FUNCTION_KEYS = {"id", "type", "function"}, {"name", "arguments"}


def unusual(messages: Sequence[dict[str, Any]], max_messages: int) -> list[int]:
    """Which messages are to be checked; nothing of the others could be wrong, or of the old form.

    Those are plain texts, calls and their results and have nothing else. Most of an agent's history
    is, and all of it is sent with every request. Raises InvalidRequest for too many, and for none.
    """
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
    found: list[int] = []
    for index, message in enumerate(messages):
        size, role, content = len(message), message.get("role"), message.get("content")
        if type(content) is str:
            if size == 2 and role in _SPEAKERS:
                continue
            if size == 3 and role == "tool" and type(message.get("tool_call_id")) is str:
                continue
        if not (size == 3 and role == "assistant" and _is_usual_reply(message)):
            found.append(index)
    return found


def check_messages(
    messages: Sequence[dict[str, Any]], which: Iterable[int], media: MediaReader
) -> None:
    """Describe images and audio, and put the text of files as text; all else stays as it is.

    Unknown keys do too, since a template may read them. Raises InvalidRequest.
    """
    for index in which:
        _check_message(messages[index], f"messages[{index}]", media)


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
        checked_function(function, f"{at}.function")
        if len(tool) > _USUAL_KEYS:
            check_depth(tool, at)
    return tuple(tools)


def checked_function(function: Mapping[str, Any], at: str) -> None:
    """Raises InvalidRequest for a function that cannot be offered."""
    if type(function.get("name")) is not str:
        text_in(function, "name", at)
    if type(function.get("description")) is not str:
        optional_text_in(function, "description", at)
    if not isinstance(function.get("parameters") or {}, dict):
        raise invalid(f"{at}.parameters", "expected an object", "invalid_type")
    check_depth(function, at)


def _check_message(message: dict[str, Any], at: str, media: MediaReader) -> None:
    role = message.get("role")
    if role is None:
        raise missing(f"{at}.role")
    if role not in _ROLES:
        raise invalid(f"{at}.role", f"supported values are {', '.join(map(repr, _ROLES))}")
    content = message.get("content")
    if content is None:
        if role not in ("assistant", "function"):
            raise missing(f"{at}.content")
    elif isinstance(content, list):
        for index, part in enumerate(content):
            content[index] = _checked_part(part, f"{at}.content[{index}]", role, media)
    elif not isinstance(content, str):
        raise invalid(f"{at}.content", "expected a string or an array of parts", "invalid_type")
    (_check_calls if role == "assistant" else _check_no_calls)(message, at)
    (text_in if role == "tool" else optional_text_in)(message, "tool_call_id", at)
    (text_in if role == "function" else optional_text_in)(message, "name", at)
    optional_text_in(message, "reasoning_content", at)
    check_depth(message, at)


def _is_usual_reply(message: dict[str, Any]) -> bool:
    """Whether an assistant's message of three fields has calls and, maybe, a text, and no more."""
    calls = message.get("tool_calls")
    if type(calls) is not list or "content" not in message:
        return False
    content = message["content"]
    if content is not None and type(content) is not str:
        return False
    for call in calls:
        if type(call) is not dict or call.keys() != _CALL_KEYS or call["type"] != "function":
            return False
        function = call["function"]
        if type(call["id"]) is not str or type(function) is not dict:
            return False
        if function.keys() != _FUNCTION_KEYS or type(function["name"]) is not str:
            return False
        if type(function["arguments"]) is not str:
            return False
    return True


def _checked_part(part: object, at: str, role: str, media: MediaReader) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise invalid(at, "expected an object", "invalid_type")
    kind = part.get("type")
    if kind == "text" or (kind == "refusal" and role == "assistant"):
        text_in(part, kind, at)
        for key in ("text", "refusal"):
            optional_text_in(part, key, at)
        return part
    if isinstance(kind, str) and kind in _MEDIA:
        media.check(_MEDIA[kind], at)
        if role not in _SHOWN_BY:
            raise invalid(f"{at}.type", "only user and tool messages hold images and audio")
        if kind == "input_audio":
            return media.audio(part.get(kind), f"{at}.{kind}")
        image = part.get("image_url")
        if not isinstance(image, dict):
            return media.image(image, f"{at}.image_url", part.get("detail"))
        return media.image(image.get("url"), f"{at}.image_url.url", image.get("detail"))
    if kind == "file" and isinstance(file := part.get("file"), dict) and file.get("file_data"):
        text = media.file_text(file["file_data"], f"{at}.file.file_data")
        return {"type": "text", "text": text}
    if isinstance(kind, str) and kind in _NO_MEDIA:
        raise refused(_NO_MEDIA[kind], f"{at}.type")
    raise invalid(f"{at}.type", "supported values are 'text', 'image_url' and 'input_audio'")


def _check_no_calls(message: dict[str, Any], at: str) -> None:
    for key in ("tool_calls", "function_call"):
        if message.get(key):
            raise invalid(f"{at}.{key}", "only assistant messages call tools")


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
        text_in(call, "id", here)
        _check_function(call.get("function"), f"{here}.function")
    if message.get("function_call") is not None:
        _check_function(message["function_call"], f"{at}.function_call")


def _check_function(function: object, at: str) -> None:
    if not isinstance(function, dict):
        raise invalid(at, "expected an object", "invalid_type")
    text_in(function, "name", at)
    text_in(function, "arguments", at)
