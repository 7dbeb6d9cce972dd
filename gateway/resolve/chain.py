"""The canonical form of messages, and the rolling hash over them.

A hash stands after each message, so that one indexed query finds every stored turn whose reply
ends a prefix of a request. What clients change without meaning to (key order, empty content,
re-serialised arguments, rewritten call ids, dropped reasoning, trailing white space) does not
change the form. System messages, some of which carry the time of day, and what agents remark for
the model alone are left out of it; `head_hash` tells whether they changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any
from uuid import UUID

import msgspec

from gateway.records import Message, is_remark

Tools = Sequence[Mapping[str, Any]]

_SYSTEM = ("system", "developer")
#: Bytes of `head_hash` for each of its two parts.
HALF = 16
_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `message_count` messages of a request, which end in a reply, by their hash."""

    hash: bytes
    message_count: int


def seed(key_id: UUID, model: str) -> bytes:
    """Where the chain of a conversation starts: one API key, one model."""
    return sha256(key_id.bytes + model.encode()).digest()


def chain(messages: Iterable[Message], start: bytes) -> list[bytes]:
    """The SHA-256 after each message, each over the one before and the canonical message."""
    hashes: list[bytes] = []
    position: dict[str, int] = {}
    numbers = count()
    current = start
    for message in messages:
        if not _apart(message):
            form = msgspec.msgpack.encode(_canonical(message, position, numbers))
            current = sha256(current + form).digest()
        hashes.append(current)
    return hashes


def prefixes(messages: Sequence[Message], start: bytes) -> list[Prefix]:
    """Those prefixes that end in an assistant message, the deepest first."""
    hashes = chain(messages, start)
    return [
        Prefix(hashes[index], index + 1)
        for index in range(len(messages) - 1, -1, -1)
        if messages[index]["role"] == "assistant"
    ]


def request_hash(messages: Sequence[Message], tools: Tools, start: bytes = b"") -> bytes:
    """SHA-256 of the request as parsed: equal only if every field of every message is."""
    body = msgspec.json.encode([messages, tools], order="deterministic")
    return sha256(start + body).digest()


def head_hash(messages: Iterable[Message], tools: Tools) -> bytes:
    """What the chain leaves out: 16 bytes for system messages and remarks, 16 for tools."""
    apart = [_text(message.get("content")) for message in messages if _apart(message)]
    return _half(apart) + _half(list(tools))


def _apart(message: Message) -> bool:
    return message["role"] in _SYSTEM or is_remark(message)


def _canonical(message: Message, position: dict[str, int], numbers: Iterator[int]) -> list[Any]:
    """[role, name, content, calls, answered call]; ids of calls become their number."""
    role = message["role"]
    calls = []
    for call in message.get("tool_calls") or ():
        position[call["id"]] = next(numbers)
        function = call["function"]
        calls.append([function["name"], _arguments(function["arguments"])])
    if legacy := message.get("function_call"):
        calls.append([legacy["name"], _arguments(legacy["arguments"])])
    name = message.get("name") if role in ("user", "function") else None
    answers = None
    if role == "tool":
        answers = position.get(message.get("tool_call_id") or "", -1)
    return [role, name, _text(message.get("content")), calls, answers]


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
        else:
            kept = {key: value for key, value in part.items() if key != "cache_control"}
            parts.append({"part": msgspec.json.encode(kept, order="deterministic")})
    if not parts:
        return ""
    if isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip()
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def _arguments(text: str) -> bytes:
    """Arguments parsed and written with sorted keys; those that are no JSON stay as they are."""
    try:
        value = _number(msgspec.json.decode(text)) if text.strip() else {}
        return b"json" + msgspec.json.encode(value, order="deterministic")
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


def _half(value: list[Any]) -> bytes:
    return sha256(msgspec.json.encode(value, order="deterministic")).digest()[:HALF]
