"""Messages of content blocks, turned into the one form that the pipeline knows.

One message of blocks becomes several: each tool result is a message of its own. Thinking is kept
as `reasoning_content`; `cache_control`, signatures and citations mean nothing here and are
dropped, so that a client which moves or loses them still sends the same conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.errors import InvalidRequest
from gateway.records import IS_ERROR, Message
from gateway.wire.json_body import check_depth
from gateway.wire.json_prefix import JsonPrefix
from gateway.wire.media import MediaReader

#: The key under which a tool input holds arguments that are no JSON object, as they were written.
UNPARSED = "INVALID_JSON"

_ROLES = ("user", "assistant", "system")
_NO_TEXT = ("image", "document", "search_result", "container_upload")

Block = Mapping[str, Any]


def converted(
    system: str | Sequence[Block] | None,
    messages: Sequence[Block],
    most: int,
    media: MediaReader | None = None,
) -> tuple[Message, ...]:
    """The conversation in OpenAI form. Raises InvalidRequest that names the wrong field.

    Without `media` there is text alone.
    """
    shown = media or MediaReader(complain=wrong)
    if not messages:
        raise wrong("messages", "at least one message is required")
    found: list[Message] = []
    if system:
        found.append({"role": "system", "content": _texts(system, "system", "\n\n")})
    order: dict[str, int] = {}
    for index, message in enumerate(messages):
        at = f"messages.{index}"
        check_depth(message, at)
        role = message.get("role")
        if role not in _ROLES:
            raise wrong(f"{at}.role", f"expected one of {', '.join(map(repr, _ROLES))}")
        content = message.get("content")
        if not isinstance(content, (str, list)):
            raise wrong(f"{at}.content", "expected a string or an array of blocks")
        if role == "system":
            found.append({"role": "system", "content": _texts(content, f"{at}.content", "\n\n")})
        elif role == "assistant":
            said = _assistant(content, f"{at}.content")
            order = {call["id"]: number for number, call in enumerate(said.get("tool_calls", ()))}
            found.append(said)
        else:
            found += _user(content, f"{at}.content", order, shown)
    if messages[-1]["role"] == "assistant":
        raise wrong("messages", "this model does not continue a reply; end with a user message")
    if len(found) > most:
        raise wrong("messages", f"at most {most} messages and tool results are allowed")
    return tuple(found)


def wrong(param: str, message: str, code: str = "invalid_value") -> InvalidRequest:
    """A complaint about one field, in the words of this dialect."""
    return InvalidRequest(f"{param}: {message}", param=param, code=code)


def arguments_of(value: Mapping[str, Any]) -> str:
    """Arguments as text. `input_of` and this are each other's inverse, up to white space."""
    if isinstance(value.get(UNPARSED), str):
        return str(value[UNPARSED])
    return msgspec.json.encode(value).decode()


def input_of(arguments: str) -> dict[str, Any]:
    """A tool call's arguments as the object that clients expect, whatever the model wrote.

    The same that a client puts together from a stream.
    """
    prefix = JsonPrefix(UNPARSED)
    try:
        value = msgspec.json.decode(prefix.feed(arguments) + prefix.finish() or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {UNPARSED: arguments}


def _user(
    content: str | Sequence[Block], at: str, order: Mapping[str, int], media: MediaReader
) -> list[dict[str, Any]]:
    """Tool results in the order of their calls, then what the user says.

    Templates that write no call ids tell results apart by their order alone, and clients send
    them as they were finished.
    """
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results: list[dict[str, Any]] = []
    said: list[dict[str, Any]] = []
    for here, kind, block in _blocks(content, at):
        if kind == "tool_result":
            results.append(_result(block, here, media))
        else:
            said.append(_part(here, kind, block, media))
    results.sort(key=lambda result: order.get(result["tool_call_id"], len(order)))
    if said or not results:
        results.append({"role": "user", "content": _plain(said)})
    return results


def _result(block: Block, at: str, media: MediaReader) -> dict[str, Any]:
    content = block.get("content")
    if content is not None and not isinstance(content, (str, list)):
        raise wrong(f"{at}.content", "expected a string or an array of blocks")
    if not isinstance(content, str):
        blocks = _blocks(content or (), f"{at}.content")
        content = _plain([_part(*each, media) for each in blocks])
    result: dict[str, Any] = {
        "role": "tool",
        "tool_call_id": _text(block, "tool_use_id", at),
        "content": content,
    }
    if block.get("is_error") is True:
        result[IS_ERROR] = True
    return result


def _assistant(content: str | Sequence[Block], at: str) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    text: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for here, kind, block in _blocks(content, at):
        if kind == "tool_use":
            calls.append(_call(block, here))
        elif kind == "thinking":
            thoughts.append(_text(block, "thinking", here))
        elif kind != "redacted_thinking":
            text.append(_text_part(here, kind, block)["text"])
    message: dict[str, Any] = {"role": "assistant", "content": "".join(text)}
    if thought := "\n".join(filter(None, thoughts)):
        message["reasoning_content"] = thought
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls
    return message


def _call(block: Block, at: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise wrong(f"{at}.input", "expected an object")
    function = {"name": _text(block, "name", at), "arguments": arguments_of(given)}
    return {"id": _text(block, "id", at), "type": "function", "function": function}


def _texts(content: str | Sequence[Block], at: str, between: str) -> str:
    if isinstance(content, str):
        return content
    return between.join(_text_part(*each)["text"] for each in _blocks(content, at))


def _plain(parts: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text as a string, as clients write it in other requests; several stay apart."""
    if len(parts) > 1 or (parts and parts[0]["type"] != "text"):
        return list(parts)
    return str(parts[0]["text"]) if parts else ""


def _part(at: str, kind: str, block: Block, media: MediaReader) -> dict[str, Any]:
    """A block of a user or of a tool: text, an image, or a document of text."""
    if kind not in ("image", "document"):
        return _text_part(at, kind, block)
    source = block.get("source")
    if kind == "image":
        media.check(kind, at)
    form = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or not isinstance(form, str):
        if kind == "document":
            return _text_part(at, kind, block)
        raise wrong(f"{at}.source", "expected an object with a type")
    at = f"{at}.source"
    if kind == "document":
        if source.get("media_type") != "text/plain" or form not in ("text", "base64"):
            raise wrong(at, "only documents of text are taken", "unsupported_content")
        data = _text(source, "data", at)
        text = data if form == "text" else media.text(data, f"{at}.data")
        return {"type": "text", "text": text}
    if form == "base64":
        return media.image_data(source.get("media_type"), source.get("data"), at)
    if form == "url":
        return media.image(source.get("url"), f"{at}.url")
    raise wrong(f"{at}.type", "expected 'base64' or 'url'", "unsupported_content")


def _text_part(at: str, kind: str, block: Block) -> dict[str, Any]:
    if kind == "text":
        return {"type": "text", "text": _text(block, "text", at)}
    if kind in _NO_TEXT:
        words = f"this model does not take {kind.replace('_', ' ')} content"
        raise wrong(f"{at}.type", words, "unsupported_content")
    words = f"blocks of type {kind[:64]!r} are not supported here"
    raise wrong(f"{at}.type", words, "unsupported_content")


def _blocks(content: Sequence[Block], at: str) -> Iterable[tuple[str, str, Block]]:
    """(where it is, its type, the block) of each block."""
    for index, block in enumerate(content):
        here = f"{at}.{index}"
        if not isinstance(block, dict):
            raise wrong(here, "expected an object")
        yield here, _text(block, "type", here), block


def _text(holder: Block, key: str, at: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str):
        raise wrong(f"{at}.{key}", "field required" if value is None else "expected a string")
    return value
