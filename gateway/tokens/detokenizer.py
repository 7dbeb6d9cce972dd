"""Ids to text as they come, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

from gateway.tokens.tokenizer import Tokenizer

_DECODER = codecs.getincrementaldecoder("utf-8")
_REPLACEMENT = "\ufffd"
_WINDOW = 64


class Detokenizer(Protocol):
    """All texts of `feed` and that of `flush`, joined, are the decoded ids."""

    def feed(self, ids: Iterable[int]) -> str: ...

    def flush(self) -> str: ...


def detokenizer(tokenizer: Tokenizer) -> Detokenizer:
    """A fresh one for one reply."""
    return ByteDetokenizer(tokenizer) if tokenizer.is_byte_level else WindowDetokenizer(tokenizer)


class ByteDetokenizer:
    """For byte-level vocabularies: each id stands for bytes whatever surrounds it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes_of = tokenizer.bytes_of
        #: There while the bytes so far end inside a character, which few do.
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, ids: Iterable[int]) -> str:
        data = b"".join(map(self._bytes_of, ids))
        decoder = self._decoder
        if decoder is None:
            try:
                return data.decode()
            except UnicodeDecodeError:
                decoder = _DECODER(errors="replace")
        text = decoder.decode(data)
        self._decoder = decoder if decoder.getstate()[0] else None
        return text

    def flush(self) -> str:
        decoder, self._decoder = self._decoder, None
        return "" if decoder is None else decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For other vocabularies: decodes the newest ids along with those just before them.

    What precedes decides about leading spaces; a text that ends in U+FFFD waits for the rest of
    its character, at most 64 ids long.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        self._pending: list[int] = []

    def feed(self, ids: Iterable[int]) -> str:
        return "".join(map(self._one, ids))

    def flush(self) -> str:
        text = self._new_text()
        self._shown, self._pending = self._shown + self._pending, []
        return text

    def _one(self, id_: int) -> str:
        self._pending.append(id_)
        text = self._new_text()
        if not text or (text.endswith(_REPLACEMENT) and len(self._pending) < _WINDOW):
            return ""
        self._shown, self._pending = self._pending, []
        return text

    def _new_text(self) -> str:
        if not self._pending:
            return ""
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode(self._shown + self._pending)[len(before) :]
