"""Reading up to an opening tag, which is the same in every form whose calls have one."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache

from gateway.tokens.formats.base import CallReader
from gateway.tokens.stops import held_back


class OpenedReader(CallReader):
    """A reader of calls that begin with a tag; what follows the tag is for `_in_head`.

    `_before` is what is shown before a head that is no call after all. Spaces around calls are
    dropped, and `dropped` are texts that say nothing there; they begin as the tag does.
    """

    def __init__(
        self, opening: str, mint: Callable[[], str], dropped: tuple[str, ...] = ()
    ) -> None:
        super().__init__(mint)
        self._opening = opening
        self._first = opening[0]
        self._marks = (opening, *dropped)
        self._mark = any_of(self._marks)
        self._before = ""
        #: Seen and not shown: a call may follow.
        self._spaces = ""
        self._after_call = False

    def _in_text(self, final: bool) -> bool:
        if self._first not in self._buffer:
            self._tell(self._buffer, final)
            self._buffer = ""
            return False
        found = self._mark.search(self._buffer)
        if found is None:
            keep = 0 if final else held_back(self._buffer, *self._marks)
            ready = len(self._buffer) - keep
            self._tell(self._buffer[:ready], final)
            self._buffer = self._buffer[ready:]
            return False
        self._tell(self._buffer[: found.start()], False)
        self._buffer = self._buffer[found.end() :]
        if found[0] == self._opening:
            self._before = self._spaces + self._opening
            self._spaces, self._after_call = "", False
            self._state = self._in_head
        return True

    def _tell(self, text: str, final: bool) -> None:
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        text = self._spaces + text
        shown = text if final else text.rstrip()
        self._show(shown)
        self._spaces = text[len(shown) :]

    @abstractmethod
    def _in_head(self, final: bool) -> bool: ...


@lru_cache(maxsize=64)
def any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the first of these texts."""
    return re.compile("|".join(map(re.escape, marks)))
