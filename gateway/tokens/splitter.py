"""The incremental form of `reply_format.split`: text in, deltas out, the same for any cutting."""

from __future__ import annotations

from collections.abc import Callable

from gateway.records import Delta
from gateway.tokens.reply_format import ReplyFormat
from gateway.tokens.stops import held_back


class Splitter:
    """Reads one reply: reasoning here, what follows it by the reader of the form's calls.

    Each `_in_…` method is a state; it returns whether there is more to do.
    """

    def __init__(self, form: ReplyFormat, mint: Callable[[], str]) -> None:
        self._reader = form.calls.reader(mint, form.schemas) if form.calls else None
        self._thought = form.thought
        self._buffer = ""
        self._out: list[Delta] = []
        self._fresh = True
        self._state: Callable[[bool], bool] = (
            self._in_reasoning
            if form.prefilled
            else self._in_opening
            if form.think
            else self._in_answer
        )

    def feed(self, text: str, *, final: bool = False) -> list[Delta]:
        """Deltas that `text` adds; `final` says that nothing follows."""
        self._buffer += text
        while self._state(final):
            pass
        out, self._out = self._out, []
        return out

    def _in_opening(self, final: bool) -> bool:
        start = self._buffer.lstrip()
        opening = self._thought.open
        if start.startswith(opening):
            self._buffer = start[len(opening) :]
            self._state = self._in_reasoning
            return True
        if not final and opening.startswith(start):
            return False
        self._state = self._in_answer
        return True

    def _in_reasoning(self, final: bool) -> bool:
        if self._fresh:
            self._buffer = self._buffer.lstrip("\n")
            self._fresh = not self._buffer
        closing = self._thought.close
        head, closed, rest = self._buffer.partition(closing)
        if closed:
            self._show(reasoning=head.rstrip("\n"))
            self._buffer = rest
            self._state = self._in_pause
            return True
        keep = 0 if final else held_back(self._buffer, closing)
        ready = self._buffer[: len(self._buffer) - keep].rstrip("\n")
        self._show(reasoning=ready)
        self._buffer = "" if final else self._buffer[len(ready) :]
        return False

    def _in_pause(self, final: bool) -> bool:
        self._buffer = self._buffer.lstrip("\n")
        if not self._buffer and not final:
            return False
        self._state = self._in_answer
        return True

    def _in_answer(self, final: bool) -> bool:
        text, self._buffer = self._buffer, ""
        if self._reader is not None:
            self._out += self._reader.feed(text, final=final)
        else:
            self._show(text=text)
        return False

    def _show(self, *, text: str = "", reasoning: str = "") -> None:
        if text or reasoning:
            self._out.append(Delta(text=text, reasoning=reasoning))
