"""Which session a request belongs to and which turn it continues. Pure: look-ups are the store's.

Messages are compared in a canonical form, and a rolling hash stands after each of them, so that
one indexed query finds every stored turn whose reply ends a prefix of the request. What clients
change without meaning to (key order, empty content, re-serialised arguments, rewritten call ids,
dropped reasoning, trailing white space) does not change the form. System messages are left out of
it, since some carry the time of day; `head_hash` tells whether they changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any
from uuid import UUID

import msgspec

from gateway.records import Candidate, FinishReason, Message, Resolution, TurnRequest

Tools = Sequence[Mapping[str, Any]]

_SYSTEM = ("system", "developer")
_RETRY_WINDOW_S = 600.0
_HALF = 16
_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `message_count` messages of a request, which end in a reply, by their hash."""

    hash: bytes
    message_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSession:
    """The session that a client named; `id` None if nothing is stored under that name yet."""

    id: UUID | None
    turns: int = 0
    has_tools: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A stored turn that answered the same request hash; `delivered`: its client saw the end."""

    turn_id: UUID
    request_hash: bytes
    idempotency_key: str | None
    delivered: bool
    created_at: float


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
        if message["role"] not in _SYSTEM:
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


def request_hash(messages: Sequence[Message], tools: Tools) -> bytes:
    """SHA-256 of the request as parsed: equal only if every field of every message is."""
    return sha256(msgspec.json.encode([messages, tools], order="deterministic")).digest()


def head_hash(messages: Iterable[Message], tools: Tools) -> bytes:
    """What the chain leaves out: 16 bytes for system messages, 16 for tools."""
    system = [_text(message.get("content")) for message in messages if message["role"] in _SYSTEM]
    return _half(system) + _half(list(tools))


def resolve(
    request: TurnRequest,
    *,
    found: Sequence[Prefix],
    named: NamedSession | None,
    candidates: Sequence[Candidate],
) -> Resolution:
    """Session and parent of a request.

    `found` are the request's prefixes, `candidates` the stored turns with one of their hashes,
    `named` the session the client named, if it did: then only turns inside it can be parents.
    Otherwise the deepest match counts; of several, one that is not continued yet, and if all are,
    nothing tells their users apart and a new session begins, marked ambiguous.
    """
    counts = {prefix.hash: prefix.message_count for prefix in found}
    matched = [turn for turn in candidates if turn.chain_hash in counts]
    if named is not None:
        matched = [turn for turn in matched if turn.session_id == named.id]
    deepest = max((counts[turn.chain_hash] for turn in matched), default=0)
    closest = [turn for turn in matched if counts[turn.chain_hash] == deepest]
    head = head_hash(request.messages[:deepest], request.tools)
    closest = [turn for turn in closest if turn.tools_hash == head] or closest
    fresh = [turn for turn in closest if not turn.continued]
    if not closest:
        return _root(request, named)
    if not fresh and len(closest) > 1 and named is None:
        return Resolution(
            session_id=None,
            parent=None,
            rule="ambiguous_prefix",
            branch_reason="ambiguous",
            ambiguous=True,
        )
    parent = max(fresh or closest, key=lambda turn: (turn.created_at, turn.turn_id))
    rule = "prefix" if fresh else "prefix_branch"
    return Resolution(
        session_id=parent.session_id,
        parent=parent,
        rule=rule if named is None else f"named_{rule}",
        new_from=deepest,
        branch_reason=_branch_reason(request.messages[deepest:], parent, head),
        ambiguous=len(fresh or closest) > 1,
        beside_tools=named is not None and named.has_tools,
    )


def retry_of(
    request: TurnRequest, digest: bytes, attempts: Iterable[Attempt], now: float
) -> UUID | None:
    """The turn that this request asks for again, or None.

    An equal body alone is no retry: groups of equal requests are sampled on purpose. It takes a
    retry count, the same idempotency key, or a first reply that never arrived.
    """
    again = [
        attempt
        for attempt in attempts
        if attempt.request_hash == digest
        and now - attempt.created_at <= _RETRY_WINDOW_S
        and (
            request.retry_count > 0
            or not attempt.delivered
            or (
                request.idempotency_key is not None
                and attempt.idempotency_key == request.idempotency_key
            )
        )
    ]
    return max(again, key=lambda attempt: attempt.created_at).turn_id if again else None


def _root(request: TurnRequest, named: NamedSession | None) -> Resolution:
    if named is None:
        return Resolution(session_id=None, parent=None, rule="new")
    told = any(message["role"] == "assistant" for message in request.messages)
    reason = None
    if named.turns:
        reason = "history_edited" if told else "new_root"
    return Resolution(
        session_id=named.id,
        parent=None,
        rule="named",
        branch_reason=reason,
        beside_tools=named.has_tools,
    )


def _branch_reason(new: Sequence[Message], parent: Candidate, head: bytes) -> str | None:
    if any(message["role"] == "assistant" for message in new):
        return "history_edited"
    if parent.finish_reason in (FinishReason.LENGTH, FinishReason.ABORT):
        return "parent_truncated"
    if parent.tools_hash[:_HALF] != head[:_HALF]:
        return "system_changed"
    return "tools_changed" if parent.tools_hash[_HALF:] != head[_HALF:] else None


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
    return sha256(msgspec.json.encode(value, order="deterministic")).digest()[:_HALF]
