"""What the document says of fields beyond their types: ranges, and the shapes of messages.

Enough for a tool to make requests that get past the first check. What depends on the model or on
other fields (how long a reply may be, which tools are named) no schema can say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.wire.request_fields import (
    MODEL_CHARACTERS,
    MOST_CHOICES,
    MOST_TOOLS,
    MOST_TOP_LOGPROBS,
)
from gateway.wire.sampling_fields import LARGEST_INT

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
_COUNT: Schema = {"minimum": 1, "maximum": LARGEST_INT}


def described(name: str, body: Schema) -> Schema:
    """The schema of a record with what is known of its fields."""
    own = _FIELDS.get(name, {})
    properties = {
        field: _narrowed(schema, own.get(field) or _SHARED.get(field, {}))
        for field, schema in body.get("properties", {}).items()
    }
    return {**body, "properties": properties, **_RULES.get(name, {})}


def _narrowed(schema: Schema, by: Schema) -> Schema:
    """The schema with `by` on each of its alternatives that is of a type which it speaks of."""
    if not by:
        return schema
    if "anyOf" not in schema:
        return {**schema, **by}
    kind = by.get("type")
    options = [
        {**option, **by}
        if option.get("type") not in ("null", None) and kind in (None, option["type"])
        else option
        for option in schema["anyOf"]
    ]
    return {**schema, "anyOf": options}


def _shape(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    bounds = {} if most is None else {"maxItems": most}
    return {"type": "array", "items": items, "minItems": least, **bounds}


def _content(*parts: str) -> Schema:
    """A text, or parts of these types; such as hold no text have fields of their own."""
    return {"anyOf": [_TEXT, _list(_shape(("type",), type={"enum": list(parts)}, text=_TEXT))]}


def _message(*roles: str, content: Schema, needed: bool = True, **more: Schema) -> Schema:
    required = ("role", "content") if needed else ("role",)
    return _shape(required, role={"enum": list(roles)}, content=content, **more)


_NAME: Schema = {"type": "string", "minLength": 1}
_FUNCTION = _shape(("name",), name=_NAME, description=_TEXT, parameters=_OBJECT)
_CALLED = _shape(("name", "arguments"), name=_TEXT, arguments=_TEXT)
_CALL = _shape(
    ("id", "function"),
    id=_TEXT,
    type={"const": "function"},
    function=_CALLED,
)
_REPLY: Schema = {"anyOf": [{"type": "null"}, *_content("text", "refusal")["anyOf"]]}
_SHOWN = _content("text", "image_url", "input_audio", "file")
_CHAT: Schema = {
    "anyOf": [
        _message("system", "developer", content=_content("text"), name=_TEXT),
        _message("user", content=_SHOWN, name=_TEXT),
        _message("assistant", content=_REPLY, needed=False, tool_calls=_list(_CALL)),
        _message("assistant", content=_REPLY, needed=False, function_call=_CALLED),
        {
            **_message("tool", content=_SHOWN, tool_call_id=_TEXT),
            "required": ["role", "content", "tool_call_id"],
        },
        {
            **_message("function", content=_REPLY, needed=False, name=_TEXT),
            "required": ["role", "name"],
        },
    ]
}
_BLOCKS = _content(
    "text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result"
)
_TALK = _list(_message("user", "assistant", "system", content=_BLOCKS), 1)
_KINDS = ("message", "reasoning", "function_call", "function_call_output", "item_reference")
_ITEM: Schema = {
    "anyOf": [
        _message(
            "user",
            "assistant",
            "system",
            "developer",
            content=_content(
                "input_text",
                "output_text",
                "text",
                "refusal",
                "input_image",
                "input_audio",
                "input_file",
            ),
            type={"const": "message"},
        ),
        _shape(("type",), type={"enum": list(_KINDS)}),
    ]
}
#: One prompt of ids, or several of one form, which no schema says.
_PROMPT: Schema = {"anyOf": [_NAME, {"type": "integer"}, _list({"type": "integer"}, 1)]}
_STOP: Schema = {"type": "string", "minLength": 1, "maxLength": 1_000}

_SHARED: Mapping[str, Schema] = {
    "model": {"minLength": 1, "maxLength": MODEL_CHARACTERS},
    "temperature": {"minimum": 0, "maximum": 2},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1, "maximum": LARGEST_INT},
    "min_p": {"minimum": 0, "maximum": 1},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "repetition_penalty": {"exclusiveMinimum": 0, "maximum": 2},
    "seed": {"minimum": -LARGEST_INT - 1, "maximum": LARGEST_INT},
    "n": {"minimum": 1, "maximum": MOST_CHOICES},
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "max_output_tokens": _COUNT,
    "top_logprobs": {"minimum": 0, "maximum": MOST_TOP_LOGPROBS},
}
_FIELDS: Mapping[str, Mapping[str, Schema]] = {
    "ChatBody": {
        "messages": _list(_CHAT, 1),
        "tools": _list(
            _shape(("type", "function"), type={"const": "function"}, function=_FUNCTION),
            most=MOST_TOOLS,
        ),
        "tool_choice": {"type": "string", "enum": ["auto", "none", "required"]},
        "functions": _list(_FUNCTION, most=MOST_TOOLS),
        "function_call": {"type": "string", "enum": ["auto", "none"]},
        "stop": {"type": "array", "items": _STOP, "maxItems": 4},
    },
    "CompletionBody": {
        "prompt": _list(_PROMPT, 1),
        "best_of": {"minimum": 1, "maximum": MOST_CHOICES},
        "logprobs": {"minimum": 0, "maximum": 5},
        "stop": {"type": "array", "items": _STOP, "maxItems": 4},
    },
    "ResponseBody": {
        "input": {"type": "array", "items": _ITEM},
        "truncation": {"enum": ["auto", "disabled"]},
    },
    "MessageBody": {
        "messages": _TALK,
        "stop_sequences": {"items": _STOP, "maxItems": 32},
    },
    "ConversationBody": {"messages": _TALK},
}
#: What ties fields together.
_RULES: Mapping[str, Schema] = {
    "ResponseBody": {"required": ["model", "input"]},
    "CompletionBody": {"required": ["model", "prompt"]},
}
