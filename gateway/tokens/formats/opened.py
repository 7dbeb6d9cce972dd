"""Reading up to an opening tag, which is the same in every form whose calls have one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from gateway.tokens.formats.base import CallReader
from gateway.tokens.stops import held_back


class OpenedReader(CallReader):
    """A reader of calls that begin with a tag; what follows the tag is for `_in_head`.

    The spaces before a tag are kept, for where no call follows it after all; those between calls
    are dropped.
    """

    def __init__(self, opening: str, mint: Callable[[], str]) -> None:
        super().__init__(mint)
        self._opening = opening
        self._spaces = ""
        self._after_call = False

    def _in_text(self, final: bool) -> bool:
        if self._after_call:
            self._buffer = self._buffer.lstrip()
            self._after_call = not self._buffer
        head, opened, rest = self._buffer.partition(self._opening)
        if opened:
            shown = head.rstrip()
            self._show(shown)
            self._spaces, self._buffer = head[len(shown) :], rest
            self._state = self._in_head
            return True
        ready = self._buffer
        if not final:
            ready = ready[: len(ready) - held_back(ready, self._opening)].rstrip()
        self._show(ready)
        self._buffer = self._buffer[len(ready) :]
        return False

    @abstractmethod
    def _in_head(self, final: bool) -> bool: ...
