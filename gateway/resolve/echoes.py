"""What of a reply a client sends back: ids that were minted here, and how the talk has gone.

An id is unique for ever and names its turn, however its client rewrites the rest. An outline is
the first user message and what the assistant has said since, an exchange the last user message
and the reply, both without white space: they find the turn where tool results, other messages or
formatting were rewritten or the head of the history was dropped, and may be those of several
turns. A task is what a call gives a sub-agent to do, which then comes as a user message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import sha256

import msgspec

from gateway.records import Message, is_remark, plain_text

#: Clients drop or change what is no letter or digit, and dialects have prefixes of their own.
_MINTED = re.compile(r"(?:call|toolu|fc)[^0-9A-Za-z]?([0-9a-f]{24})(?![0-9A-Za-z])")
#: Tools by which agents call agents, and the shortest task that is told from small talk.
_DELEGATES = re.compile(r"agent|task|delegat", re.IGNORECASE)
_SHORTEST_TASK = 12
_SEARCHED_CHARACTERS = 20_000
_MOST_KEYS = 64


class EchoKind(Enum):
    CALL = auto()
    OUTLINE = auto()
    TASK = auto()


@dataclass(frozen=True, slots=True)
class Echo:
    """A key found in the first `message_count` messages of a request.

    Of the kinds, a call's id and an outline (or exchange) are of a reply that the request
    continues, a task of one that called it.
    """

    key: str
    message_count: int
    kind: EchoKind


def call_key(id_: str) -> str | None:
    """The form of a tool-call id that survives its clients; None for ids not minted here."""
    found = _MINTED.fullmatch(id_)
    return found.group(1) if found else None


def echoes_of(messages: Sequence[Message], reply: Message, start: bytes) -> tuple[str, ...]:
    """The keys by which later requests will show that they follow from a reply."""
    calls = reply.get("tool_calls") or ()
    ids = [call_key(call["id"]) for call in calls]
    found = [id_ for id_ in ids if id_ is not None]
    if not found:
        found += _outlines([*messages, reply], start)
    for call in calls:
        if _DELEGATES.search(call["function"]["name"]):
            found += _tasks(call["function"]["arguments"], start)
    return tuple(dict.fromkeys(found[:_MOST_KEYS]))


def echoed(messages: Sequence[Message], start: bytes) -> list[Echo]:
    """The keys in a request's last reply and in what stands after it."""
    found: list[Echo] = []
    last = len(messages) - 1
    while last >= 0 and messages[last]["role"] != "assistant":
        last -= 1
    if last >= 0:
        keys = _ids(messages, last)[:_MOST_KEYS]
        found += [Echo(key, last + 1, EchoKind.CALL) for key in keys]
        outlines = _outlines(messages[: last + 1], start)
        found += [Echo(key, last + 1, EchoKind.OUTLINE) for key in outlines]
    asked = messages and messages[-1]["role"] == "user"
    if asked and (task := _task(plain_text(messages[-1]), start)):
        found.append(Echo(task, len(messages), EchoKind.TASK))
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


def _outlines(messages: Sequence[Message], start: bytes) -> Iterator[str]:
    """`~` and the outline, `=` and the last exchange, of messages that end in a reply."""
    said = [message for message in messages if message["role"] == "user" and not is_remark(message)]
    reply = _squeezed(messages[-1])
    if not said or not reply:
        return
    digest = sha256(start + _squeezed(said[0]))
    for message in messages:
        if message["role"] == "assistant":
            names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
            digest.update(b"\0" + _squeezed(message) + b"\0" + "\0".join(names).encode())
    yield f"~{digest.hexdigest()[:32]}"
    yield f"={sha256(start + _squeezed(said[-1]) + bytes(1) + reply).hexdigest()[:32]}"


def _tasks(arguments: str, start: bytes) -> Iterator[str]:
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return
    for value in given.values() if isinstance(given, dict) else ():
        if isinstance(value, str) and (task := _task(value, start)):
            yield task


def _task(text: str, start: bytes) -> str | None:
    squeezed = "".join(text.split()).encode("utf-8", "surrogatepass")
    if len(squeezed) < _SHORTEST_TASK:
        return None
    return f">{sha256(start + squeezed).hexdigest()[:32]}"


def _squeezed(message: Message) -> bytes:
    return "".join(plain_text(message).split()).encode("utf-8", "surrogatepass")
