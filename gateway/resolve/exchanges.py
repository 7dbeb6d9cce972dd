"""Exchanges: what a user said last and the reply, by which a turn is known again.

They find the turn where the rest of the history was dropped or rewritten. Clients also take out of
what they keep: emphasis, marks of sources, what was looked up for a question or remarked behind
it, and the end of a reply that a caller interrupted. So an exchange has several keys: the words
whole, each end of them where they have several parts, the beginning of the reply, and a long reply
by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256

#: Bytes of letters that an exchange must have for a part of it to be a key: short ones are
#: everybody's.
_SHORTEST = 24
#: The same of a reply whose user's words are not known.
_LONG = 64
#: How much of a reply must be left where its end was cut.
_BEGINNING = 24

_SOURCES = re.compile(r"\[\^?\d{1,3}\]|\]\([^()\s]{1,500}\)|【[^】]{1,40}】")
_SIGNS = bytes(sign for sign in range(128) if not chr(sign).isalnum())
_LABEL = re.compile(r"\A[^\n:]{1,40}:\s")


def squeezed(text: str) -> bytes:
    """A text without ASCII signs and white space, marks of sources and the targets of links.

    One of signs alone loses only its white space. Every request is looked at: no expression goes
    through a text that has no bracket.
    """
    shown = _SOURCES.sub("", text) if "[" in text or "\u3010" in text else text
    letters = shown.encode("utf-8", "surrogatepass").translate(None, _SIGNS)
    return letters or "".join(text.split()).encode("utf-8", "surrogatepass")


def exchange_key(user: bytes, reply: bytes, start: bytes) -> str:
    """The key of what a user said last and the reply, both squeezed."""
    return _key("=", user, reply, start)


def reply_key(reply: bytes, start: bytes) -> str | None:
    """The key of a squeezed reply alone; None for one that is not long enough to be one's own."""
    return _key(".", b"", reply, start) if len(reply) >= _LONG else None


def exchange_keys(said: str, user: bytes, reply: bytes, start: bytes) -> list[str]:
    """All keys of an exchange; `said` are the words as they came, `user` the same squeezed."""
    keys = [_key("=", user, reply, start)]
    if len(reply) >= _BEGINNING:
        keys.append(_key("-", user, reply[:_BEGINNING], start))
    if "\n" in said:
        for part in _parts(said):
            words = squeezed(part)
            if words != user and len(words) + len(reply) >= _SHORTEST:
                keys.append(_key("=", words, reply, start))
    return keys


def _parts(said: str) -> Iterator[str]:
    """The ends of words in several parts, one of which may be the question."""
    text = said.strip()
    for mark in ("\n\n", "\n"):
        if mark in text:
            yield text.partition(mark)[0]
            last = text.rpartition(mark)[2]
            yield last
            if (label := _LABEL.match(last)) is not None:
                yield last[label.end() :]


def _key(mark: str, user: bytes, reply: bytes, start: bytes) -> str:
    return f"{mark}{sha256(start + user + bytes(1) + reply).hexdigest()[:32]}"
