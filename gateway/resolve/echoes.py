"""What of a reply a client sends back: ids that were minted here, and how the talk has gone.

An id is unique for ever and names its turn, however its client rewrites the rest. An outline is
the first user message and what the assistant has said since, without white space: it finds the
turn where tool results, later user messages or formatting were rewritten, and may be that of
several turns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from gateway.records import Message, is_remark, plain_text

#: Clients drop or change what is no letter or digit, and dialects have prefixes of their own.
_MINTED = re.compile(r"(?:call|toolu|fc)[^0-9A-Za-z]?([0-9a-f]{24})(?![0-9A-Za-z])")
_SEARCHED_CHARACTERS = 20_000
_MOST_KEYS = 64


@dataclass(frozen=True, slots=True)
class Echo:
    """A key found in the first `message_count` messages of a request; `minted`: it is an id."""

    key: str
    message_count: int
    minted: bool


def call_key(id_: str) -> str | None:
    """The form of a tool-call id that survives its clients; None for ids not minted here."""
    found = _MINTED.fullmatch(id_)
    return found.group(1) if found else None


def echoes_of(messages: Sequence[Message], reply: Message, start: bytes) -> tuple[str, ...]:
    """The keys by which a client's next request will show that it continues a reply."""
    ids = [call_key(call["id"]) for call in reply.get("tool_calls") or ()]
    found = [id_ for id_ in ids if id_ is not None][:_MOST_KEYS]
    if not found and plain_text(reply).strip():
        found += filter(None, [_outline([*messages, reply], start)])
    return tuple(dict.fromkeys(found))


def echoed(messages: Sequence[Message], start: bytes) -> list[Echo]:
    """The keys in a request's last reply and in the tool results after it."""
    last = len(messages) - 1
    while last >= 0 and messages[last]["role"] != "assistant":
        last -= 1
    if last < 0:
        return []
    found = [Echo(key, last + 1, minted=True) for key in _ids(messages, last)[:_MOST_KEYS]]
    if plain_text(messages[last]).strip() and (outline := _outline(messages[: last + 1], start)):
        found.append(Echo(outline, last + 1, minted=False))
    return found


def _ids(messages: Sequence[Message], last: int) -> list[str]:
    reply = messages[last]
    ids = [call_key(call["id"]) for call in reply.get("tool_calls") or ()]
    ids += [
        call_key(message.get("tool_call_id") or "")
        for message in messages[last + 1 :]
        if message["role"] == "tool"
    ]
    # Some frameworks turn calls into text.
    ids += _MINTED.findall(plain_text(reply)[:_SEARCHED_CHARACTERS])
    return list(dict.fromkeys(id_ for id_ in ids if id_ is not None))


def _outline(messages: Sequence[Message], start: bytes) -> str | None:
    """`~` and the hash of the first user message and of all that the assistant said."""
    first = next(
        (m for m in messages if m["role"] == "user" and not is_remark(m)),
        None,
    )
    if first is None:
        return None
    digest = sha256(start + _squeezed(first))
    for message in messages:
        if message["role"] == "assistant":
            names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
            digest.update(b"\0" + _squeezed(message) + b"\0" + "\0".join(names).encode())
    return f"~{digest.hexdigest()[:32]}"


def _squeezed(message: Message) -> bytes:
    return "".join(plain_text(message).split()).encode("utf-8", "surrogatepass")
