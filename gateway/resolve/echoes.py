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
from collections.abc import Iterator, Sequence
from enum import IntEnum, auto
from hashlib import sha256

import msgspec

from gateway.records import DESCRIBED, Message, described, plain_text
from gateway.resolve.beside import instructions_key, words_key
from gateway.resolve.exchanges import exchange_keys, reply_key, squeezed
from gateway.resolve.quotes import is_summed_up, quoted, summarised, summary_keys
from gateway.resolve.voices import Voices

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


class EchoKind(IntEnum):
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
    messages: Sequence[Message],
    reply: Message,
    start: bytes,
    head: bytes | None = None,
    voices: Voices | None = None,
) -> tuple[str, ...]:
    """The keys by which later requests will show that they follow from a reply, or ask the same.

    `head` is the request's `head_hash` where that of the turn before was another; `voices` are
    those of the messages, where they are known.
    """
    if voices is None:
        voices = Voices.of(messages)
    found: list[str] = []
    calls = reply.get("tool_calls")
    if calls:
        ids = [call_key(call["id"]) for call in calls]
        found += [id_ for id_ in ids if id_ is not None]
    if not found:
        found += _said(messages, reply, start, voices)
    if calls:
        for call in calls:
            if _DELEGATES.search(call["function"]["name"]):
                found += _tasks(call["function"]["arguments"], start)
    elif is_summed_up(messages):
        found += summary_keys(plain_text(reply), start)
    if (words := words_key(voices, start)) is not None:
        found.append(words)
    if head is not None:
        found.append(instructions_key(head, start))
    return tuple(dict.fromkeys(found[:_MOST_KEYS]))


def echoed(
    messages: Sequence[Message],
    start: bytes,
    head: bytes | None = None,
    voices: Voices | None = None,
) -> list[Echo]:
    """The keys in a request's last reply and in what stands after it.

    `head` by `head_hash`; `voices` are those of the messages, where they are known.
    """
    if voices is None:
        voices = Voices.of(messages)
    found: list[Echo] = []
    if voices.replies:
        ends = voices.replies[: -_REPLIES - 1 : -1]
        last = ends[0]
        found += _called(messages, last)
        said = _squeezed(messages[last])
        if said and voices.asked and voices.asked[0] < last:
            told = [messages[at] for at in voices.replies]
            outline = _outline(_squeezed(messages[voices.asked[0]]), told, said, start)
            found.append(Echo(outline, last + 1, EchoKind.OUTLINE))
        exchanges = _exchanges(messages, ends, start, voices)
        found += [Echo(key, at + 1, EchoKind.OUTLINE) for at, key in exchanges if at == last]
        if (alone := reply_key(said, start)) is not None:
            found.append(Echo(alone, last + 1, EchoKind.REPLY))
        # Clients put words into the assistant's mouth behind its last real reply.
        found += [Echo(key, at + 1, EchoKind.OUTLINE) for at, key in exchanges if at != last]
    if voices.asks and (task := _task(voices.words[-1], start)) is not None:
        kind = EchoKind.TASK if task.startswith(">") else EchoKind.ORDER
        found.append(Echo(task, len(messages), kind))
    for key in quoted(messages, start, voices):
        found.append(Echo(key, len(messages), EchoKind.QUOTE))
    for key in summarised(messages, start, voices):
        found.append(Echo(key, len(messages), EchoKind.SUMMARY))
    if voices.replies:
        found += _beside(messages, start, head, voices)
    return found


def echoed_near(
    messages: Sequence[Message],
    start: bytes,
    head: bytes | None = None,
    voices: Voices | None = None,
) -> list[Echo]:
    """Those of `echoed` that still count where the turn of the last reply is found for certain.

    They are the ids of its calls, and what tells whether a request goes on from it or stands
    beside it. None of them takes a look at the whole history.
    """
    if voices is None:
        voices = Voices.of(messages)
    if not voices.replies:
        return []
    return _called(messages, voices.replies[-1]) + _beside(messages, start, head, voices)


def _called(messages: Sequence[Message], last: int) -> list[Echo]:
    return [Echo(key, last + 1, EchoKind.CALL) for key in _ids(messages, last)[:_MOST_KEYS]]


def _beside(
    messages: Sequence[Message], start: bytes, head: bytes | None, voices: Voices
) -> list[Echo]:
    found: list[Echo] = []
    if (words := words_key(voices, start)) is not None:
        found.append(Echo(words, len(messages), EchoKind.WORDS))
    if head is not None:
        found.append(Echo(instructions_key(head, start), len(messages), EchoKind.INSTRUCTIONS))
    return found


def _ids(messages: Sequence[Message], last: int) -> list[str]:
    reply = messages[last]
    keys: dict[str, None] = {}
    for call in reply.get("tool_calls") or ():
        if (key := call_key(call["id"])) is not None:
            keys[key] = None
    for message in messages[last + 1 :]:
        if message["role"] == "tool":
            key = call_key(message.get("tool_call_id") or "")
            if key is not None:
                keys[key] = None
    # Some frameworks turn calls into text.
    for key in _MINTED.findall(plain_text(reply)[:_SEARCHED_CHARACTERS]):
        keys[key] = None
    return list(keys)


def _said(messages: Sequence[Message], reply: Message, start: bytes, voices: Voices) -> list[str]:
    """The keys of a reply that no id in it tells: by the talk, by its exchange and alone."""
    found: list[str] = []
    said = _squeezed(reply)
    if said and voices.asked:
        first = asked = _squeezed(messages[voices.asked[0]])
        if len(voices.asked) > 1:
            asked = _squeezed(messages[voices.asked[-1]])
        told = [messages[at] for at in voices.replies]
        found.append(_outline(first, [*told, reply], said, start))
        found += exchange_keys(voices.words[-1], asked, said, start)
    if (alone := reply_key(said, start)) is not None:
        found.append(alone)
    return found


def _exchanges(
    messages: Sequence[Message], ends: Sequence[int], start: bytes, voices: Voices
) -> list[tuple[int, str]]:
    """Each of some replies, the last first, and the keys of the exchange that it ends."""
    found: list[tuple[int, str]] = []
    at, squeezed_at, words = len(voices.asked), 0, b""
    for end in ends:
        while at and voices.asked[at - 1] > end:
            at -= 1
        if not at:
            break
        if at != squeezed_at:
            squeezed_at, words = at, _squeezed(messages[voices.asked[at - 1]])
        if reply := _squeezed(messages[end]):
            keys = exchange_keys(voices.words[at - 1], words, reply, start)
            found += [(end, key) for key in keys]
    return found


def _outline(first: bytes, replies: Sequence[Message], last: bytes, start: bytes) -> str:
    """`~` and the outline of a talk, its first words and all replies; the last one says `last`."""
    told = [first]
    for reply in replies:
        told.append(last if reply is replies[-1] else _squeezed(reply))
        calls = reply.get("tool_calls")
        told.append("\0".join([c["function"]["name"] for c in calls]).encode() if calls else b"")
    return f"~{sha256(start + bytes(1).join(told)).hexdigest()[:32]}"


def _tasks(arguments: str, start: bytes) -> Iterator[str]:
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return
    for value in given.values() if isinstance(given, dict) else ():
        if isinstance(value, str) and (task := _task(value, start)) is not None:
            yield task


def _task(text: str, start: bytes) -> str | None:
    """`>` and a task, or `<` and a short one."""
    words = squeezed(text)
    if len(words) < _SHORTEST_ORDER:
        return None
    mark = ">" if len(words) >= _SHORTEST_TASK else "<"
    return f"{mark}{sha256(start + words).hexdigest()[:32]}"


def _squeezed(message: Message) -> bytes:
    """What a message says; where it shows something, that as well."""
    content = message.get("content")
    if type(content) is str:
        return squeezed(content)
    shown = "".join(part[DESCRIBED]["sha256"] for part in described(message))
    return squeezed(plain_text(message)) + shown.encode()
