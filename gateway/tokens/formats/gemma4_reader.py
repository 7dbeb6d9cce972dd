"""The incremental form of `Gemma4Calls.take`."""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.tokens.formats.gemma4_arguments import QUOTE, ArgumentScan
from gateway.tokens.formats.opened import OpenedReader
from gateway.tokens.stops import held_back

OPEN, CLOSE = "<|tool_call>", "<tool_call|>"

HEAD = re.compile(r"\s*call:(?P<name>[^\s{}<]+)\s*(?=\{)")
#: What ends a call: its own token, which is part of it, or another that opens.
END = re.compile(rf"{re.escape(CLOSE)}|(?={re.escape(OPEN)})")


class Gemma4Reader(OpenedReader):
    """Reads one reply as it comes; texts grow, keys and numbers are shown once they are whole."""

    def __init__(self, mint: Callable[[], str]) -> None:
        super().__init__(OPEN, mint)
        self._scan = ArgumentScan()

    def _in_head(self, final: bool) -> bool:
        if head := HEAD.match(self._buffer):
            self._open(head["name"])
            self._buffer = self._buffer[head.end() :]
            self._scan = ArgumentScan()
            self._state = self._in_arguments
            return True
        found = END.search(self._buffer)
        if found is None and not final:
            return False
        end = found.end() if found else len(self._buffer)
        self._show(self._before + self._buffer[:end])
        self._buffer = self._buffer[end:]
        self._state = self._in_text
        return bool(self._buffer)

    def _in_arguments(self, final: bool) -> bool:
        found = END.search(self._buffer)
        if found:
            self._arguments(self._scan.feed(self._buffer[: found.start()]))
            self._buffer = self._buffer[found.end() :]
            self._after_call = True
            self._state = self._in_text
            return True
        keep = 0 if final else held_back(self._buffer, CLOSE, OPEN, QUOTE)
        ready = len(self._buffer) - keep
        self._arguments(self._scan.feed(self._buffer[:ready]))
        self._buffer = self._buffer[ready:]
        return False
