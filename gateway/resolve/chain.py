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
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from gateway.records import DESCRIBED, Message, is_media, is_remark, without_data
from gateway.resolve.voices import SYSTEM, Voices

Tools = Sequence[Mapping[str, Any]]

#: Bytes of `head_hash` for each of its two parts.
HALF = 16
_TEXTS = ("text", "refusal")
_EXACT = 2**53
_MARK, _MARK_IN_JSON = "cache_control", b"cache_control"
#: No text without it holds a number that JSON would read as a float.
_FRACTION = re.compile(r"[0-9][.eE]")
#: What is such a number, or may hold one.
_NUMBERED = (dict, list, float)

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


def chain(
    messages: Iterable[Message], start: bytes, key: bytes = b"", apart: Container[int] | None = None
) -> list[bytes]:
    """The SHA-256 after each message, each over the one before and the canonical message.

    That is [role, name, content, calls, answered call], in which calls have numbers for ids.
    `apart` tells where those stand that are left out, if that is known.
    """
    if apart is None:
        messages = tuple(messages)
        apart = Voices.of(messages).apart
    hashes: list[bytes] = []
    position: dict[str, int] = {}
    number = 0
    current = start
    for at, message in enumerate(messages):
        if at not in apart:
            role, content = message["role"], message.get("content")
            text = content.rstrip() if type(content) is str else _text(content)
            calls: list[Any] = []
            name = answered = None
            if role == "tool":
                answered = position.get(message.get("tool_call_id") or "", -1)
            elif "tool_calls" in message:
                for call in message["tool_calls"] or ():
                    position[call["id"]] = number
                    number += 1
                    function = call["function"]
                    calls.append([function["name"], _arguments(function["arguments"])])
            if role == "user" and "name" in message:
                name = message["name"]
            form = _pack([role, name, text, calls, answered])
            current = sha256(key + current + form).digest()
        hashes.append(current)
    return hashes


def chained(before: bytes, reply: Message, key: bytes = b"") -> bytes:
    """The hash after a reply that follows messages which end in `before`.

    A reply answers no call, so that what was called earlier has no part in its form.
    """
    return chain((reply,), before, key, ())[0]


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
    return _whole(without_data(messages), _steady(tools), start)


def head_hash(messages: Iterable[Message], tools: Tools, key: bytes = b"") -> bytes:
    """What the chain leaves out: 16 bytes for system messages and remarks, 16 for tools."""
    return _head(filter(is_apart, messages), tools, _steady(tools), key)


def both_hashes(
    messages: Sequence[Message], tools: Tools, start: bytes, key: bytes, voices: Voices
) -> tuple[bytes, bytes]:
    """(`request_hash`, `head_hash`) of a request: tools, which may be long, are written once."""
    bare = without_data(messages) if voices.shows else messages
    offered = _steady(tools)
    return _whole(bare, offered, start), _head(voices.apart.values(), tools, offered, key)


def _whole(messages: Sequence[Message], offered: bytes, start: bytes) -> bytes:
    """The hash of [messages, tools] in JSON, where `offered` is that of the tools."""
    return sha256(b"".join((start, b"[", _steady(messages), b",", offered, b"]"))).digest()


def _head(apart: Iterable[Message], tools: Tools, offered: bytes, key: bytes) -> bytes:
    said = _steady([_text(message.get("content")) for message in apart])
    if _MARK_IN_JSON in offered:
        offered = _steady([_unmarked(tool) for tool in tools])
    return sha256(key + said).digest()[:HALF] + sha256(key + offered).digest()[:HALF]


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
    return message["role"] in SYSTEM or is_remark(message)


def _text(content: str | Sequence[Mapping[str, Any]] | None) -> str | list[Any]:
    """Content as one string, or its parts where some are not text; no trailing white space."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content.rstrip()
    parts: list[Any] = []
    for part in content:
        kind = part.get("type")
        if kind in _TEXTS:
            text = part.get(kind, "")
            if parts and type(parts[-1]) is str:
                parts[-1] += text
            else:
                parts.append(text)
        elif is_media(part):
            parts.append({"media": [part[DESCRIBED]["kind"], part[DESCRIBED]["sha256"]]})
        else:
            parts.append({"part": _steady(_without_mark(part))})
    if not parts:
        return ""
    if type(parts[-1]) is str:
        parts[-1] = parts[-1].rstrip()
    return parts[0] if len(parts) == 1 and type(parts[0]) is str else parts


def _arguments(text: str) -> bytes:
    """Arguments parsed and written with sorted keys; those that are no JSON stay as they are."""
    try:
        value = _parse(text)
        for item in value.values() if type(value) is dict else (value,):
            # Nearly all are names and texts, and the texts of whole files are not searched.
            if type(item) in _NUMBERED:
                if _FRACTION.search(text):
                    value = _number(value)
                break
        return b"json" + _steady(value)
    except (msgspec.DecodeError, RecursionError):
        plain = text.strip()
        return b"text" + plain.encode() if plain else b"json{}"


def _number(value: Any) -> Any:
    """JavaScript writes 1.0 as 1; both are the same argument."""
    if isinstance(value, dict):
        return {
            key: _number(item) if type(item) in _NUMBERED else item for key, item in value.items()
        }
    if isinstance(value, list):
        return [_number(item) if type(item) in _NUMBERED else item for item in value]
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if whole else value
