"""Conversations that stand inside a message: quoted whole, or put into a summary.

Agents without session ids ask for a summary (or a title) in one message that quotes what was said,
and go on in a new history that opens with the summary. What is quoted is looked up by its
exchanges, as any other history is; a summary by its lines, which nobody else was told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice

from gateway.records import Message, plain_text
from gateway.resolve.exchanges import exchange_key, squeezed
from gateway.resolve.voices import SYSTEM, Voices

_SEARCHED_CHARACTERS = 20_000
_MOST_EXCHANGES = 6
_MOST_LINES = 24
_KEPT_LINES = 4
#: Bytes without white space; shorter lines are said by many.
_SHORTEST_LINE = 24

#: Who speaks, as transcripts put it: `[User]:`, `Human:`, `AI:`.
_SPEAKER = re.compile(
    r"^[ \t]*(?:\[(?P<bracket>[A-Za-z][A-Za-z ]{1,24})\]"
    r"|(?P<plain>User|Human|Assistant|AI|Tool|System))[ \t]*:",
    re.MULTILINE | re.IGNORECASE,
)
_USERS = ("user", "human")
_ASSISTANTS = ("assistant", "ai")
_SUMMED_UP = ("summar", "snapshot", "compact", "condens", "checkpoint")
#: A list of messages as JSON begins so.
_DUMP = re.compile(r"\[\s*\{\s*\"[a-z_]{1,20}\"\s*:")
_JSON = json.JSONDecoder()
_CLOSED = re.compile(r"\n\s*</[A-Za-z]")
_TAG = re.compile(r"</?[A-Za-z_][\w-]{0,40}>")


def quoted(messages: Sequence[Message], start: bytes, voices: Voices) -> list[str]:
    """`=` and each exchange that a lone question quotes, the last ones first."""
    if voices.replies or len(voices.asked) != 1:
        return []
    for message in messages:
        if message["role"] == "tool":
            return []
    text = voices.words[0][-_SEARCHED_CHARACTERS:]
    if ":" not in text:
        # Neither form is without it.
        return []
    user = b""
    found: list[str] = []
    for who, words in (*_transcript(text), *_dumped(text)):
        said = squeezed(words)
        if who in _USERS:
            user = said
        elif who in _ASSISTANTS and user and said:
            found.append(exchange_key(user, said, start))
    return list(dict.fromkeys(found[: -_MOST_EXCHANGES - 1 : -1]))


def _transcript(text: str) -> Iterator[tuple[str, str]]:
    """(who speaks, what is said) of a transcript by lines."""
    marks = list(_SPEAKER.finditer(text))
    for mark, end in zip(marks, [mark.start() for mark in marks[1:]] + [None], strict=False):
        # What stands behind the transcript, after a closing tag, is said by nobody in it.
        said = _CLOSED.split(text[mark.end() : end], maxsplit=1)[0]
        yield (mark["bracket"] or mark["plain"]).lower(), said


def _dumped(text: str) -> Iterator[tuple[str, str]]:
    """The same of the first list of messages that is written as JSON."""
    if (opening := _DUMP.search(text)) is None:
        return
    try:
        told, _ = _JSON.raw_decode(text, opening.start())
    except (ValueError, RecursionError):
        return
    for message in told:
        if isinstance(message, dict) and isinstance(message.get("role"), str):
            content = message.get("content")
            if isinstance(content, list):
                parts = [part for part in content if isinstance(part, dict)]
                content = "".join(str(part.get("text") or "") for part in parts)
            if isinstance(content, str):
                yield message["role"].lower(), content


def is_summed_up(messages: Sequence[Message]) -> bool:
    """Whether a request asks for a summary, as far as its first and last words tell."""
    first, last = plain_text(messages[0]), plain_text(messages[-1])
    return _mentions(f"{first[:2_000]}\n{last[:2_000]}{last[-2_000:]}")


def summary_keys(reply: str, start: bytes) -> list[str]:
    """`%` and the first and last lines of a summary, by which it is known again."""
    lines = list(dict.fromkeys(_lines(reply)))
    return [_line_key(line, start) for line in dict.fromkeys(lines[:_KEPT_LINES] + lines[-4:])]


def summarised(messages: Sequence[Message], start: bytes, voices: Voices) -> list[str]:
    """The same of what opens a history and says that it is a summary."""
    texts = voices.words[:3]
    for message in messages[:2]:
        if message["role"] in SYSTEM:
            texts.append(plain_text(message))
    opening = [text[:_SEARCHED_CHARACTERS] for text in texts]
    # Hardly any is one: all are looked at together first.
    if not _mentions("\n".join(opening)):
        return []
    lines = (line for text in opening if _mentions(text) for line in _lines(text))
    return [_line_key(line, start) for line in islice(lines, _MOST_LINES)]


def _mentions(text: str) -> bool:
    """Whether a text speaks of summaries; every request is looked at, so it is a plain search."""
    folded = text.lower()
    for word in _SUMMED_UP:  # noqa: SIM110 - a generator costs as much as what it asks
        if word in folded:
            return True
    return False


def _lines(text: str) -> Iterator[bytes]:
    """Lines that are long enough, and what stands after a heading on the same line."""
    for line in _TAG.sub("\n", text).splitlines():
        parts = [line]
        if ":" in line[:120]:
            parts.append(line.partition(":")[2])
        for part in parts:
            if len(words := squeezed(part)) >= _SHORTEST_LINE:
                yield words


def _line_key(line: bytes, start: bytes) -> str:
    return f"%{sha256(start + line).hexdigest()[:32]}"
