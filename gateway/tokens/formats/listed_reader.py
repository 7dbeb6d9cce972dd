"""The incremental form of `ListedCalls.take`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.tokens.formats.base import CallReader
from gateway.tokens.formats.json_call import HEAD, ObjectScan, spelled_name, whole_call
from gateway.tokens.stops import held_back

if TYPE_CHECKING:
    from gateway.tokens.formats.listed import ListedCalls

#: What stands before the first call, and behind each.
BEFORE = " \t\r\n["
BEHIND = " \t\r\n],;"

_FIRST_KEYS = ("name", "type", "function", "parameters", "arguments", "id")
FIRST = re.compile(r'\{\s*"(?:' + "|".join(_FIRST_KEYS) + r')"')
_KEY_TEXTS = tuple(f'"{key}"' for key in _FIRST_KEYS)


class ListedReader(CallReader):
    """Reads one reply with JSON calls as it comes."""

    def __init__(self, form: ListedCalls, mint: Callable[[], str]) -> None:
        super().__init__(mint)
        self._form = form
        #: What is shown along with the buffer if no call comes of it.
        self._before = ""
        self._scan = ObjectScan()
        self._scanned = 0
        if form.bare:
            self._state = self._in_start

    def _in_start(self, final: bool) -> bool:
        stripped = self._buffer.lstrip()
        if not stripped and not final:
            return False
        if stripped.startswith("{"):
            self._begin(self._buffer[: len(self._buffer) - len(stripped)], stripped)
        else:
            self._state = self._in_text
        return True

    def _in_text(self, final: bool) -> bool:
        mark = self._form.mark
        head, opened, rest = self._buffer.partition(mark)
        if opened:
            shown = head.rstrip()
            self._show(shown)
            self._begin(head[len(shown) :] + mark, rest)
            self._state = self._in_gap
            return True
        ready = self._buffer
        if not final:
            ready = ready[: len(ready) - held_back(ready, mark)].rstrip()
        self._show(ready)
        self._buffer = self._buffer[len(ready) :]
        return False

    def _begin(self, before: str, buffer: str) -> None:
        self._before, self._buffer = before, buffer
        self._scan = ObjectScan()
        self._scanned = 0
        self._state = self._in_head

    def _in_gap(self, final: bool) -> bool:
        stripped = self._buffer.lstrip(BEFORE)
        self._before += self._buffer[: len(self._buffer) - len(stripped)]
        self._buffer = stripped
        if not stripped and not final:
            return False
        self._state = self._in_head
        return True

    def _in_head(self, final: bool) -> bool:
        head = HEAD.match(self._buffer) if self._buffer.startswith("{") else None
        name = spelled_name(head["name"]) if head else None
        if head and name:
            self._open(name)
            self._before, self._buffer = "", self._buffer[head.end() :]
            self._scan = ObjectScan()
            self._state = self._in_arguments
            return True
        if not FIRST.match(self._buffer):
            if _may_begin(self._buffer) and not final:
                return False
            self._give_up(0)
            return bool(self._buffer)
        end = self._scan.feed(self._buffer[self._scanned :])
        if end is None:
            self._scanned = len(self._buffer)
            if final:
                self._give_up(len(self._buffer))
            return False
        end += self._scanned
        if call := whole_call(self._buffer[:end], bare=True):
            self._open(call[0])
            self._arguments(call[1])
            self._before, self._buffer = "", self._buffer[end:]
            self._state = self._in_between
            return True
        self._give_up(end)
        return bool(self._buffer)

    def _give_up(self, end: int) -> None:
        self._show(self._before + self._buffer[:end])
        self._before, self._buffer = "", self._buffer[end:]
        self._state = self._in_text

    def _in_arguments(self, _: bool) -> bool:
        end = self._scan.feed(self._buffer)
        self._arguments(self._buffer[:end])
        if end is None:
            self._buffer = ""
            return False
        self._buffer = self._buffer[end:]
        self._scan = ObjectScan(depth=1)
        self._state = self._in_rest
        return True

    def _in_rest(self, _: bool) -> bool:
        end = self._scan.feed(self._buffer)
        if end is None:
            self._buffer = ""
            return False
        self._buffer = self._buffer[end:]
        self._state = self._in_between
        return True

    def _in_between(self, final: bool) -> bool:
        self._buffer = self._buffer.lstrip(BEHIND)
        mark = self._form.mark
        if self._buffer.startswith("{"):
            self._begin("", self._buffer)
        elif self._buffer.startswith(mark):
            self._begin(mark, self._buffer[len(mark) :])
            self._state = self._in_gap
        elif mark.startswith(self._buffer) and not final:
            return False
        else:
            self._state = self._in_text
        return True


def _may_begin(text: str) -> bool:
    """Whether more text may make this the beginning of a call."""
    if not text.startswith("{"):
        return not text
    rest = text[1:].lstrip()
    return any(key.startswith(rest) for key in _KEY_TEXTS)
