"""Which of the tokens of a reply spell its messages: log-probabilities are told of those alone."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from gateway.wire.base import TokenLogprob

#: Stands for bytes that are no character: of them there is at least one, and none of ASCII.
_BROKEN = re.compile("\ufffd+")
_HIGH = bytes(range(0x80, 0x100))
#: Places that a text with such bytes is looked for at.
_TRIES = 64
#: How vocabularies that are not of bytes write a space, and a byte that is no character.
_SPACE = "\u2581"
_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")


class Spelling:
    """Tokens as they come, and where in their bytes a text stands; a text is after those before it.

    However tokens and texts are told, together or one by one, the answers are the same.
    """

    def __init__(self, tokens: Sequence[TokenLogprob] = ()) -> None:
        self._tokens: list[TokenLogprob] = []
        self._raw = bytearray()
        #: Where the bytes of each token end.
        self._ends: list[int] = []
        #: Where the last text ended, and the first token that no `more` has told.
        self.at = self._untold = 0
        self.add(tokens)

    def add(self, tokens: Sequence[TokenLogprob]) -> None:
        for token in tokens:
            self._tokens.append(token)
            self._raw += _bytes(token.raw)
            self._ends.append(len(self._raw))

    def take(self, text: str) -> list[TokenLogprob]:
        """The tokens of the next text; none where it is not as it was sampled."""
        first, end = self._find(text)
        return self._tokens[first:end]

    def more(self, text: str) -> list[TokenLogprob]:
        """The tokens of a text that goes on, without those that were told of what came before."""
        first, end = self._find(text)
        first, self._untold = max(first, self._untold), max(end, self._untold)
        return self._tokens[first:end]

    def _find(self, text: str) -> tuple[int, int]:
        """Which tokens, from the first to before the end."""
        place = self._place(text) if text and self._tokens else None
        if place is None:
            return 0, 0
        start, self.at = place
        return bisect_right(self._ends, start), bisect_left(self._ends, self.at) + 1

    def _place(self, text: str) -> tuple[int, int] | None:
        """The first and the end of the bytes of a text."""
        text = text.replace(_SPACE, " ")
        first, *others = (part.encode("utf-8", "surrogatepass") for part in _BROKEN.split(text))
        start = self.at - 1
        for _ in range(_TRIES):
            start = self._raw.find(first, start + 1)
            if start < 0:
                return None
            end: int | None = start + len(first)
            for part in others:
                end = None if end is None else self._after(end, part)
            if end is not None:
                return start, end
        return None

    def _after(self, at: int, part: bytes) -> int | None:
        """The end of a part that broken bytes come before; None where others do."""
        raw = self._raw
        found = raw.find(part, at + 1) if part else at
        if not part:
            while found < len(raw) and raw[found] >= 0x80:
                found += 1
        if found <= at or raw[at:found].translate(None, _HIGH):
            return None
        return found + len(part)


def _bytes(raw: bytes) -> bytes:
    """What a token stands for in a text."""
    found = _BYTE.fullmatch(raw)
    return bytes.fromhex(found[1].decode()) if found else raw.replace(_SPACE.encode(), b" ")
