"""The incremental form of `reply_format.split`: text in, deltas out, the same for any cutting."""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.records import Delta
from gateway.tokens.reply_format import (
    CALL,
    CALL_END,
    CALL_HEAD,
    THINK,
    THINK_END,
    ReplyFormat,
    call_name,
    whole_call,
)
from gateway.tokens.stops import held_back

_MARKS = re.compile(r'["\\{}]')


class Splitter:
    """Reads one reply. Each `_in_…` method is a state; it returns whether there is more to do.

    A call is shown as soon as its name is known and its arguments begin; what cannot become a
    call any more is shown as text.
    """

    def __init__(self, form: ReplyFormat, mint: Callable[[], str]) -> None:
        self._form = form
        self._mint = mint
        self._buffer = ""
        self._out: list[Delta] = []
        self._calls = 0
        self._spaces = ""
        self._after_call = False
        self._fresh = True
        self._scan = _ObjectScan()
        self._state: Callable[[bool], bool] = (
            self._in_reasoning
            if form.prefilled
            else self._in_opening
            if form.think
            else self._in_text
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
        if start.startswith(THINK):
            self._buffer = start[len(THINK) :]
            self._state = self._in_reasoning
            return True
        if not final and THINK.startswith(start):
            return False
        self._state = self._in_text
        return True

    def _in_reasoning(self, final: bool) -> bool:
        if self._fresh:
            self._buffer = self._buffer.lstrip("\n")
            self._fresh = not self._buffer
        head, closed, rest = self._buffer.partition(THINK_END)
        if closed:
            self._show(reasoning=head.rstrip("\n"))
            self._buffer = rest
            self._state = self._in_pause
            return True
        keep = 0 if final else held_back(self._buffer, THINK_END)
        ready = self._buffer[: len(self._buffer) - keep].rstrip("\n")
        self._show(reasoning=ready)
        self._buffer = "" if final else self._buffer[len(ready) :]
        return False

    def _in_pause(self, _: bool) -> bool:
        self._buffer = self._buffer.lstrip("\n")
        if not self._buffer:
            return False
        self._state = self._in_text
        return True

    def _in_text(self, final: bool) -> bool:
        if not self._form.tools:
            self._show(text=self._buffer)
            self._buffer = ""
            return False
        if self._after_call:
            self._buffer = self._buffer.lstrip()
            self._after_call = not self._buffer
        head, opened, rest = self._buffer.partition(CALL)
        if opened:
            shown = head.rstrip()
            self._show(text=shown)
            self._spaces, self._buffer = head[len(shown) :], rest
            self._state = self._in_head
            return True
        if final:
            ready = self._buffer
        else:
            ready = self._buffer[: len(self._buffer) - held_back(self._buffer, CALL)].rstrip()
        self._show(text=ready)
        self._buffer = self._buffer[len(ready) :]
        return False

    def _in_head(self, final: bool) -> bool:
        region, closed, rest = self._buffer.partition(CALL_END)
        head = CALL_HEAD.match(region)
        name = call_name(head["name"]) if head else None
        if head and name:
            self._open(name)
            self._buffer = self._buffer[head.end() :]
            self._scan = _ObjectScan()
            self._state = self._in_arguments
            return True
        if not closed and not final:
            return False
        if call := whole_call(region):
            self._open(call[0])
            self._arguments(call[1])
            self._after_call = True
        else:
            self._show(text=self._spaces + CALL + region + closed)
        self._buffer = rest
        self._state = self._in_text
        return bool(rest)

    def _in_arguments(self, _: bool) -> bool:
        end = self._scan.feed(self._buffer)
        self._arguments(self._buffer[:end])
        if end is None:
            self._buffer = ""
            return False
        self._buffer = self._buffer[end:]
        self._state = self._in_tail
        return True

    def _in_tail(self, _: bool) -> bool:
        to_end, to_next = self._buffer.find(CALL_END), self._buffer.find(CALL)
        if to_end < 0 and to_next < 0:
            keep = held_back(self._buffer, CALL_END, CALL)
            self._buffer = self._buffer[len(self._buffer) - keep :]
            return False
        if to_end >= 0 and not 0 <= to_next < to_end:
            self._buffer = self._buffer[to_end + len(CALL_END) :]
        else:
            self._buffer = self._buffer[to_next:]
        self._after_call = True
        self._state = self._in_text
        return True

    def _show(self, *, text: str = "", reasoning: str = "") -> None:
        if text or reasoning:
            self._out.append(Delta(text=text, reasoning=reasoning))

    def _open(self, name: str) -> None:
        self._out.append(Delta(call_index=self._calls, call_id=self._mint(), call_name=name))
        self._calls += 1

    def _arguments(self, text: str) -> None:
        if text:
            self._out.append(Delta(call_index=self._calls - 1, arguments=text))


class _ObjectScan:
    """Finds the end of a JSON object that arrives in pieces, braces in strings not counted."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Where in `text` the object closes, None while it is open."""
        skip = 1 if self._escaped and text else 0
        self._escaped = self._escaped and not text
        for mark in _MARKS.finditer(text):
            at, character = mark.start(), mark[0]
            if at < skip:
                continue
            if character == "\\":
                if self._quoted:
                    skip = at + 2
            elif character == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if character == "{" else -1
                if self._depth == 0:
                    return at + 1
        self._escaped = self._escaped or skip > len(text)
        return None
