"""Where what is logged waits until a thread has put it into lines and written them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from io import TextIOBase
from typing import Any, TextIO

#: Lines that come within this time are written together.
_PAUSE_S = 0.05
#: How long a stream that takes nothing is waited for at the end.
_GRACE_S = 2.0


class LineSink:
    """At most `limit` lines wait; `put` never does, and counts in `dropped` what finds no room.

    The thread makes a line of each with `render`: of many in a row, at a fraction of what it costs
    between the steps of a request. Once there is room again the log says how many were lost, in
    the words of `told(count)`. Lines that the stream refuses are lost in the same way.
    """

    def __init__(
        self,
        stream: TextIO | TextIOBase,
        told: Callable[[int], bytes],
        *,
        render: Callable[[Any], bytes] = bytes,
        limit: int = 8192,
    ) -> None:
        self.dropped = 0
        self._stream = stream
        self._told, self._render = told, render
        self._reported = 0
        self._limit = limit
        self._lines: deque[Any] = deque()
        self._some = threading.Event()
        #: Whether `_some` is set, or about to be: to ask it costs each line more.
        self._woken = False
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="log writer", daemon=True)
        self._writer.start()

    def put(self, line: Any) -> None:
        """Have something written, which nobody changes any more."""
        # Without a lock, which a finalizer that logs could find held by its own thread.
        if len(self._lines) >= self._limit:
            self.dropped += 1
            return
        self._lines.append(line)
        if not self._woken:
            self._woken = True
            self._some.set()

    def close(self) -> None:
        """Write what waits, unless the stream hangs. What is put later waits for nothing."""
        self._closing.set()
        self._some.set()
        self._writer.join(_GRACE_S)

    def _write_on(self) -> None:
        last = False
        while not last:
            self._some.wait()
            last = self._closing.wait(_PAUSE_S)
            self._some.clear()
            self._woken = False
            self._write()

    def _write(self) -> None:
        lines = self._rendered()
        lost = self.dropped - self._reported
        if lost:
            lines.append(self._told(lost))
        try:
            self._print(b"".join(lines))
        except (OSError, ValueError):
            # A pipe that nobody reads any more, a file that was closed.
            self.dropped += len(lines) - bool(lost)
        else:
            self._reported += lost

    def _rendered(self) -> list[bytes]:
        """Lines of all that waits."""
        lines: list[bytes] = []
        for _ in range(len(self._lines)):
            try:
                lines.append(self._render(self._lines.popleft()))
            except Exception:  # noqa: BLE001 - of whatever the text of a value raises
                self.dropped += 1
        return lines

    def _print(self, data: bytes) -> None:
        binary = getattr(self._stream, "buffer", None)
        if binary is None:
            self._stream.write(data.decode("utf-8", "replace"))
        else:
            binary.write(data)
        self._stream.flush()


class Sinks:
    """The same lines to several streams, none of which holds up another; `owned` is closed too."""

    def __init__(self, sinks: Sequence[LineSink], *, owned: TextIOBase | None = None) -> None:
        self._sinks, self._owned = tuple(sinks), owned
        self.put = self._sinks[0].put if len(self._sinks) == 1 else self._put

    @property
    def dropped(self) -> int:
        return sum(sink.dropped for sink in self._sinks)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        if self._owned is not None:
            self._owned.close()

    def _put(self, line: Any) -> None:
        for sink in self._sinks:
            sink.put(line)
