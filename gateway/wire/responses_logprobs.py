"""Which of the tokens of a reply spell its messages: log-probabilities are told of those alone."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from gateway.wire.base import TokenLogprob

#: Stands for bytes that are no character, at the end of a reply that was cut within one.
_HALF = "\ufffd"
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
        whole = text.rstrip(_HALF)
        signs = whole.replace(_SPACE, " ").encode("utf-8", "surrogatepass")
        start = self._raw.find(signs, self.at) if text and self._tokens else -1
        if start < 0:
            return 0, 0
        end = start + len(signs)
        if whole != text:
            while end < len(self._raw) and self._raw[end] >= 0x80:
                end += 1
        self.at = end
        return bisect_right(self._ends, start), bisect_left(self._ends, end) + 1


def _bytes(raw: bytes) -> bytes:
    """What a token stands for in a text."""
    found = _BYTE.fullmatch(raw)
    return bytes.fromhex(found[1].decode()) if found else raw.replace(_SPACE.encode(), b" ")
