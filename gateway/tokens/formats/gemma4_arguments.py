"""Gemma 4's notation of arguments, as JSON: read whole, and as it comes.

Objects and lists are written as in JSON, keys without quotes, and texts between two tokens that
stand for quotes, so that nothing in them is escaped.
"""

from __future__ import annotations

import json
import re

from gateway.tokens.formats.typed_values import as_json

QUOTE = '<|"|>'

_QUOTE = re.escape(QUOTE)
#: Marks between keys and values, as JSON is written elsewhere.
_MARKS = {"{": "{", "}": "}", "[": "[", "]": "]", ",": ", ", ":": ": "}

#: What ends a key, and a value, that stand without quotes.
_KEY_END = re.compile(rf"[{{}}\[\],:]|{_QUOTE}")
_VALUE_END = re.compile(rf"[{{}}\[\],]|{_QUOTE}")


def as_json_text(text: str) -> str:
    """JSON of the object that `text` begins with; of one that does not end, what there is."""
    written: list[str] = []
    nested, is_key, at = "", False, 0
    while at < len(text):
        character = text[at]
        if text.startswith(QUOTE, at):
            start = at + len(QUOTE)
            end = text.find(QUOTE, start)
            if end < 0:
                return "".join([*written, '"', _escaped(text[start:])])
            written.append(json.dumps(text[start:end], ensure_ascii=False))
            at = end + len(QUOTE)
        elif character in _MARKS and (character != ":" or is_key):
            written.append(_MARKS[character])
            nested = _nested(nested, character)
            is_key, at = _awaits_key(nested, character), at + 1
            if not nested:
                break
        elif character.isspace():
            at += 1
        elif found := (_KEY_END if is_key else _VALUE_END).search(text, at):
            written.append(_bare(text[at : found.start()], is_key=is_key))
            at = found.start()
        else:
            break
    return "".join(written)


class ArgumentScan:
    """The same for a text that arrives in pieces, which cut no quote in two."""

    def __init__(self) -> None:
        self._buffer = ""
        self._searched = 0
        self._nested = ""
        self._in_key = False
        self._in_text = False
        self._over = False

    def feed(self, text: str) -> str:
        """JSON of what `text` adds. A key or a number is not known before what follows it."""
        self._buffer += text
        out: list[str] = []
        while self._buffer and not self._over:
            piece = self._quoted() if self._in_text else self._plain()
            if piece is None:
                break
            out.append(piece)
        return "".join(out)

    def _quoted(self) -> str:
        said, closed, self._buffer = self._buffer.partition(QUOTE)
        self._in_text = not closed
        return _escaped(said) + ('"' if closed else "")

    def _plain(self) -> str | None:
        self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return None
        if self._buffer.startswith(QUOTE):
            self._buffer, self._in_text = self._buffer[len(QUOTE) :], True
            return '"'
        first = self._buffer[0]
        if first in _MARKS and (first != ":" or self._in_key):
            self._buffer = self._buffer[1:]
            self._nested = _nested(self._nested, first)
            self._in_key = _awaits_key(self._nested, first)
            self._over = not self._nested
            return _MARKS[first]
        found = (_KEY_END if self._in_key else _VALUE_END).search(self._buffer, self._searched)
        if found is None:
            self._searched = len(self._buffer)
            return None
        raw, self._buffer = self._buffer[: found.start()], self._buffer[found.start() :]
        self._searched = 0
        return _bare(raw, is_key=self._in_key)


def _nested(nested: str, mark: str) -> str:
    """The opening marks that are open behind `mark`."""
    if mark in "{[":
        return nested + mark
    return nested[:-1] if mark in "}]" else nested


def _awaits_key(nested: str, mark: str) -> bool:
    """Whether what follows `mark` is a key."""
    return mark == "{" or (mark == "," and nested.endswith("{"))


def _bare(raw: str, *, is_key: bool) -> str:
    return json.dumps(raw.strip(), ensure_ascii=False) if is_key else as_json(raw.strip())


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
