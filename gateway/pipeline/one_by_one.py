"""Parts of a reply one after another, however a server has mixed their deltas.

Responses and Messages have one part open at a time, and what was closed cannot be opened again. A
call is over when its arguments are a whole JSON value or the reply has ended; what comes of other
parts until then waits.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.records import Delta

_decode = msgspec.json.Decoder(msgspec.Raw).decode


class OneByOne:
    """Puts the deltas of one reply in order."""

    def __init__(self) -> None:
        self._open: int | None = None
        self._arguments = ""
        self._closed: set[int] = set()
        self._waiting: list[Delta] = []

    def take(self, deltas: Iterable[Delta]) -> list[Delta]:
        """What of these, and of those that waited, is to be told now."""
        told: list[Delta] = []
        for delta in deltas:
            if self._of_closed(delta):
                continue
            if not self._waiting and self._goes_on(delta):
                told.append(self._told(delta))
            elif self._waiting and delta.call_index is not None and delta.call_index == self._open:
                told.append(self._told(delta))
                told += self._released()
            else:
                self._waiting.append(delta)
        return told

    def finish(self) -> list[Delta]:
        """All that still waits: each call in one piece."""
        told: list[Delta] = []
        while self._waiting:
            self._leave()
            told += self._released()
        return told

    def _goes_on(self, delta: Delta) -> bool:
        """Whether a delta may follow what was told last, which it may have to end."""
        if self._open is None or delta.call_index == self._open:
            return True
        if not _is_whole(self._arguments):
            return False
        self._leave()
        return True

    def _released(self) -> list[Delta]:
        """What waited and need not, call by call."""
        told: list[Delta] = []
        while self._waiting and self._goes_on(self._waiting[0]):
            first = self._waiting.pop(0)
            told.append(self._told(first))
            if first.call_index is not None:
                index = first.call_index
                told += [self._told(one) for one in self._waiting if one.call_index == index]
                self._waiting = [one for one in self._waiting if one.call_index != index]
        return told

    def _told(self, delta: Delta) -> Delta:
        if delta.call_index is not None:
            self._open = delta.call_index
            self._arguments += delta.arguments
        return delta

    def _leave(self) -> None:
        if self._open is not None:
            self._closed.add(self._open)
        self._open, self._arguments = None, ""

    def _of_closed(self, delta: Delta) -> bool:
        """What follows whole arguments cannot be of them."""
        return delta.call_index in self._closed


def _is_whole(arguments: str) -> bool:
    try:
        _decode(arguments)
    except msgspec.DecodeError:
        return False
    return True
