"""What of a reply a client sends back: ids that were minted here, and how the talk has gone.

An id is unique for ever and names its turn, however its client rewrites the rest. An outline is
the first user message and what the assistant has said since, an exchange (`resolve.exchanges`) the
last user message and the reply, letters only: they find the turn where tool results, other
messages or formatting were rewritten or the head of the history was dropped, and may be those of
several turns. A task is what a call gives a sub-agent to do, which then comes as a user message.
What is quoted or summed up inside a message is found by `resolve.quotes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from hashlib import sha256
from itertools import islice

import msgspec

from gateway.records import DESCRIBED, Message, described, is_remark, plain_text
from gateway.resolve.beside import instructions_key, words_key
from gateway.resolve.exchanges import exchange_keys, reply_key, squeezed
from gateway.resolve.quotes import is_summed_up, quoted, summarised, summary_keys

#: Clients drop or change what is no letter or digit, and dialects have prefixes of their own.
_MINTED = re.compile(r"(?:call|toolu|fc)[^0-9A-Za-z]?([0-9a-f]{24})(?![0-9A-Za-z])")
#: Tools by which agents call agents, and the shortest task that is told from small talk.
_DELEGATES = re.compile(
    r"agent|task|delegat|(?:^|_)ask(?:_|$)|(?:^|_)sub|expert|consult|assistant|worker",
    re.IGNORECASE,
)
_SHORTEST_TASK = 12
#: One that only another agent, with instructions of its own, is known by.
_SHORTEST_ORDER = 6
_SEARCHED_CHARACTERS = 20_000
#: How many of the last replies are looked for by their exchanges.
_REPLIES = 4
_MOST_KEYS = 64


class EchoKind(Enum):
    CALL = auto()
    OUTLINE = auto()
    REPLY = auto()
    TASK = auto()
    ORDER = auto()
    QUOTE = auto()
    SUMMARY = auto()
    WORDS = auto()
    INSTRUCTIONS = auto()


class Echo(msgspec.Struct, frozen=True, gc=False):
    """A key found in the first `message_count` messages of a request.

    Of the kinds, a call's id, an outline (or exchange) and a reply are of one that the request
    continues, a task (an order, where it is short) of one that called it, a quote of one that it
    asks about, and a summary is what the request goes on from. Words and instructions are what it
    asks over a history and by which.
    """

    key: str
    message_count: int
    kind: EchoKind


def call_key(id_: str) -> str | None:
    """The form of a tool-call id that survives its clients; None for ids not minted here."""
    found = _MINTED.fullmatch(id_)
    return found.group(1) if found else None


def echoes_of(
    messages: Sequence[Message], reply: Message, start: bytes, head: bytes | None = None
) -> tuple[str, ...]:
    """The keys by which later requests will show that they follow from a reply, or ask the same.

    `head` is the request's `head_hash` where that of the turn before was another.
    """
    calls = reply.get("tool_calls") or ()
    ids = [call_key(call["id"]) for call in calls]
    found = [id_ for id_ in ids if id_ is not None]
    if not found:
        whole, end = [*messages, reply], len(messages)
        if (outline := _outline(whole, end, start)) is not None:
            found.append(outline)
            found += [key for _, key in _exchanges(whole, [end], start)]
        if (alone := reply_key(_squeezed(reply), start)) is not None:
            found.append(alone)
    for call in calls:
        if _DELEGATES.search(call["function"]["name"]):
            found += _tasks(call["function"]["arguments"], start)
    if not calls and is_summed_up(messages):
        found += summary_keys(plain_text(reply), start)
    if (words := words_key(messages, start)) is not None:
        found.append(words)
    if head is not None:
        found.append(instructions_key(head, start))
    return tuple(dict.fromkeys(found[:_MOST_KEYS]))


def echoed(messages: Sequence[Message], start: bytes, head: bytes | None = None) -> list[Echo]:
    """The keys in a request's last reply and in what stands after it; `head` by `head_hash`."""
    found: list[Echo] = []
    ends = list(islice(_replies(messages), _REPLIES))
    if ends:
        last = ends[0]
        found += _called(messages, last)
        outline = _outline(messages, last, start)
        if outline is not None:
            found.append(Echo(outline, last + 1, EchoKind.OUTLINE))
        exchanges = list(_exchanges(messages, ends, start))
        found += [Echo(key, at + 1, EchoKind.OUTLINE) for at, key in exchanges if at == last]
        if (alone := reply_key(_squeezed(messages[last]), start)) is not None:
            found.append(Echo(alone, last + 1, EchoKind.REPLY))
        # Clients put words into the assistant's mouth behind its last real reply.
        found += [Echo(key, at + 1, EchoKind.OUTLINE) for at, key in exchanges if at != last]
    asked = next((message for message in reversed(messages) if not is_remark(message)), None)
    if asked is not None and asked["role"] == "user":
        for task in _task(plain_text(asked), start):
            kind = EchoKind.TASK if task.startswith(">") else EchoKind.ORDER
            found.append(Echo(task, len(messages), kind))
    found += [Echo(key, len(messages), EchoKind.QUOTE) for key in quoted(messages, start)]
    found += [Echo(key, len(messages), EchoKind.SUMMARY) for key in summarised(messages, start)]
    return [*found, *_beside(messages, start, head)] if ends else found


def echoed_near(messages: Sequence[Message], start: bytes, head: bytes | None = None) -> list[Echo]:
    """Those of `echoed` that still count where the turn of the last reply is found for certain.

    They are the ids of its calls, and what tells whether a request goes on from it or stands
    beside it. None of them takes a look at the whole history.
    """
    last = next(_replies(messages), None)
    if last is None:
        return []
    return [*_called(messages, last), *_beside(messages, start, head)]


def _replies(messages: Sequence[Message]) -> Iterator[int]:
    """Where the replies are, the last first."""
    return (i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == "assistant")


def _called(messages: Sequence[Message], last: int) -> Iterator[Echo]:
    for key in _ids(messages, last)[:_MOST_KEYS]:
        yield Echo(key, last + 1, EchoKind.CALL)


def _beside(messages: Sequence[Message], start: bytes, head: bytes | None) -> Iterator[Echo]:
    if (words := words_key(messages, start)) is not None:
        yield Echo(words, len(messages), EchoKind.WORDS)
    if head is not None:
        yield Echo(instructions_key(head, start), len(messages), EchoKind.INSTRUCTIONS)


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


def _exchanges(
    messages: Sequence[Message], ends: Iterable[int], start: bytes
) -> Iterator[tuple[int, str]]:
    """Each of some replies, the last first, and the keys of the exchange that it ends."""
    asked = len(messages)
    said, words = "", b""
    for end in ends:
        if asked > end:
            asked = next((i for i in range(end - 1, -1, -1) if _speaks(messages[i])), -1)
            if asked < 0:
                return
            said, words = plain_text(messages[asked]), _squeezed(messages[asked])
        if reply := _squeezed(messages[end]):
            for key in exchange_keys(said, words, reply, start):
                yield end, key


def _outline(messages: Sequence[Message], end: int, start: bytes) -> str | None:
    """`~` and the outline of messages up to a reply that says something to somebody's words."""
    first: Message | None = None
    told: list[bytes] = []
    for message in messages[: end + 1]:
        role = message["role"]
        if role == "assistant":
            told.append(_squeezed(message))
            calls = message.get("tool_calls")
            told.append(
                "\0".join([c["function"]["name"] for c in calls]).encode() if calls else b""
            )
        elif first is None and role == "user" and not is_remark(message):
            first = message
    if first is None or not told[-2]:
        return None
    digest = sha256(start + b"\0".join([_squeezed(first), *told])).hexdigest()
    return f"~{digest[:32]}"


def _speaks(message: Message) -> bool:
    return message["role"] == "user" and not is_remark(message)


def _tasks(arguments: str, start: bytes) -> Iterator[str]:
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return
    for value in given.values() if isinstance(given, dict) else ():
        if isinstance(value, str):
            yield from _task(value, start)


def _task(text: str, start: bytes) -> Iterator[str]:
    """`>` and a task, or `<` and a short one."""
    words = squeezed(text)
    if len(words) >= _SHORTEST_ORDER:
        mark = ">" if len(words) >= _SHORTEST_TASK else "<"
        yield f"{mark}{sha256(start + words).hexdigest()[:32]}"


def _squeezed(message: Message) -> bytes:
    """What a message says; where it shows something, that as well."""
    if isinstance(content := message.get("content"), str):
        return squeezed(content)
    shown = "".join(part[DESCRIBED]["sha256"] for part in described(message))
    return squeezed(plain_text(message)) + shown.encode()
