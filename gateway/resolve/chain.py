"""The canonical form of messages, and the rolling hash over them.

A hash stands after each message, so that one indexed query finds every stored turn whose reply
ends a prefix of a request. What clients change without meaning to (key order, empty content,
re-serialised arguments, rewritten call ids, dropped reasoning, trailing white space) does not
change the form. Of images and audio the digest of their bytes counts, not how they were written.
System messages, some of which carry the time of day, and what agents remark for the model alone
are left out of it; `head_hash` tells whether they changed.

Where texts are stored with gaps a `key` goes into every hash: without it, what fills a short gap
could be tried out. It is empty where they are stored as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import count
from typing import Any
from uuid import UUID

import msgspec

from gateway.records import DESCRIBED, Message, is_media, is_remark, without_data

Tools = Sequence[Mapping[str, Any]]

_SYSTEM = ("system", "developer")
#: Bytes of `head_hash` for each of its two parts.
HALF = 16
_EXACT = 2**53
_MARK = "cache_control"
#: No text without it holds a number that JSON would read as a float.
_FRACTION = re.compile(r"[0-9][.eE]")

_pack = msgspec.msgpack.Encoder().encode
_steady = msgspec.json.Encoder(order="deterministic").encode
_parse = msgspec.json.Decoder().decode


class Prefix(msgspec.Struct, frozen=True, gc=False):
    """The first `message_count` messages of a request, which end in a reply, by their hash."""

    hash: bytes
    message_count: int


def seed(key_id: UUID, model: str, key: bytes = b"") -> bytes:
    """Where the chain of a conversation starts: one API key, one model."""
    return sha256(key + key_id.bytes + model.encode()).digest()


def chain(messages: Iterable[Message], start: bytes, key: bytes = b"") -> list[bytes]:
    """The SHA-256 after each message, each over the one before and the canonical message."""
    hashes: list[bytes] = []
    position: dict[str, int] = {}
    numbers = count()
    current = start
    for message in messages:
        if not is_apart(message):
            form = _pack(_canonical(message, position, numbers))
            current = sha256(key + current + form).digest()
        hashes.append(current)
    return hashes


def chained(before: bytes, reply: Message, key: bytes = b"") -> bytes:
    """The hash after a reply that follows messages which end in `before`.

    A reply answers no call, so that what was called earlier has no part in its form.
    """
    return sha256(key + before + _pack(_canonical(reply, {}, count()))).digest()


def prefixes(
    messages: Sequence[Message], start: bytes, hashes: Sequence[bytes] | None = None
) -> list[Prefix]:
    """Those prefixes that end in an assistant message, the deepest first.

    `hashes` is the `chain` of the messages, where it is known.
    """
    hashes = chain(messages, start) if hashes is None else hashes
    return [
        Prefix(hashes[index], index + 1)
        for index in range(len(messages) - 1, -1, -1)
        if messages[index]["role"] == "assistant"
    ]


def request_hash(messages: Sequence[Message], tools: Tools, start: bytes = b"") -> bytes:
    """SHA-256 of the request as parsed: equal only if every field of every message is.

    The data of images and audio is told by its digest.
    """
    return sha256(start + _steady([without_data(messages), tools])).digest()


def head_hash(messages: Iterable[Message], tools: Tools, key: bytes = b"") -> bytes:
    """What the chain leaves out: 16 bytes for system messages and remarks, 16 for tools."""
    apart = [_text(message.get("content")) for message in messages if is_apart(message)]
    return _half(apart, key) + _half([_unmarked(tool) for tool in tools], key)


def _unmarked(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool without the marks of prompt caches, which move to the tool that is last."""
    function = tool.get("function")
    if isinstance(function, Mapping) and _MARK in function:
        tool = {**tool, "function": _without_mark(function)}
    return _without_mark(tool) if _MARK in tool else tool


def _without_mark(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != _MARK}


def is_apart(message: Message) -> bool:
    """Whether the chain leaves a message out: one of the system's, or an agent's remark."""
    return message["role"] in _SYSTEM or is_remark(message)


def _canonical(message: Message, position: dict[str, int], numbers: Iterator[int]) -> list[Any]:
    """[role, name, content, calls, answered call]; ids of calls become their number."""
    role = message["role"]
    content = message.get("content")
    text = content.rstrip() if isinstance(content, str) else _text(content)
    if role == "tool":
        return [role, None, text, [], position.get(message.get("tool_call_id") or "", -1)]
    calls = []
    for call in message.get("tool_calls") or ():
        position[call["id"]] = next(numbers)
        function = call["function"]
        calls.append([function["name"], _arguments(function["arguments"])])
    name = message.get("name") if role == "user" else None
    return [role, name, text, calls, None]


def _text(content: str | Sequence[Mapping[str, Any]] | None) -> str | list[Any]:
    """Content as one string, or its parts where some are not text; no trailing white space."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content.rstrip()
    parts: list[Any] = []
    for part in content:
        if part.get("type") in ("text", "refusal"):
            text = part.get(part["type"], "")
            if parts and isinstance(parts[-1], str):
                parts[-1] += text
            else:
                parts.append(text)
        elif is_media(part):
            parts.append({"media": [part[DESCRIBED]["kind"], part[DESCRIBED]["sha256"]]})
        else:
            parts.append({"part": _steady(_without_mark(part))})
    if not parts:
        return ""
    if isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip()
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def _arguments(text: str) -> bytes:
    """Arguments parsed and written with sorted keys; those that are no JSON stay as they are."""
    try:
        value = _parse(text) if text.strip() else {}
        if _FRACTION.search(text):
            value = _number(value)
        return b"json" + _steady(value)
    except (msgspec.DecodeError, RecursionError):
        return b"text" + text.strip().encode()


def _number(value: Any) -> Any:
    """JavaScript writes 1.0 as 1; both are the same argument."""
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_number(item) for item in value]
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if whole else value


def _half(value: list[Any], key: bytes) -> bytes:
    return sha256(key + _steady(value)).digest()[:HALF]
