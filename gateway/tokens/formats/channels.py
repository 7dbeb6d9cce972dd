"""Replies in messages that say what they are: what reading them has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.records import Delta
from gateway.tokens.formats.base import CallReader, Tag


class ChannelReader(CallReader):
    """A reader of such replies. Several messages of a kind are lines of one text."""

    def __init__(self, mint: Callable[[], str]) -> None:
        super().__init__(mint)
        self._begun = {"text": False, "reasoning": False}
        #: A message has begun and nothing of it was shown.
        self._fresh = True

    def _say(self, text: str) -> None:
        self._out.append(Delta(text=self._line("text", text)))

    def _think(self, text: str) -> None:
        self._out.append(Delta(reasoning=self._line("reasoning", text)))

    def _line(self, kind: str, text: str) -> str:
        new = self._fresh and self._begun[kind]
        self._fresh, self._begun[kind] = False, True
        return f"\n{text}" if new else text


def lines(pieces: Sequence[str]) -> str:
    """The whole text of messages of one kind."""
    return "\n".join(piece for piece in pieces if piece)


def reasoned(begin: str, end: str, following: str, body: Tag) -> Tag:
    """`body`, or reasoning between `begin` and `end`, what opens the next message, and `body`."""
    thought: Tag = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": end}
    opening = {"type": "const_string", "value": following}
    after = {"type": "sequence", "elements": [thought, opening, body]}
    return {"type": "or", "elements": [after, body]}
