"""How many questions an endpoint is asked at once, and when it is left alone.

An endpoint that says it has too much to do, or does not answer, gets half as many at a time; each
answer lets it have a little more again. One that fails several times in a row is left alone for a
while, longer each time, and then asked one question before it is asked many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_FAILURES = 3
_FIRST_WAIT_S, _LAST_WAIT_S = 1.0, 60.0


@dataclass(slots=True)
class Places:
    """At most `most` at once. `clock` is monotonic, in seconds."""

    most: int
    clock: Callable[[], float] = time.monotonic
    running: int = field(default=0, init=False)
    _limit: float = field(init=False)
    _failures: int = field(default=0, init=False)
    _wait_s: float = field(default=0.0, init=False)
    _closed_until: float = field(default=0.0, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self._limit = float(self.most)

    @property
    def limit(self) -> int:
        """How many may be asked at once now; 1 while it is tried out again."""
        return 1 if self._wait_s else max(1, int(self._limit))

    @property
    def closed_s(self) -> float:
        """For how long nothing may be asked; 0 where it may."""
        return max(0.0, self._closed_until - self.clock())

    async def take(self) -> bool:
        """Wait for a place; False, and none taken, where the endpoint is being left alone."""
        while not self.closed_s and self.running >= self.limit:
            self._changed.clear()
            await self._changed.wait()
        if self.closed_s:
            return False
        self.running += 1
        return True

    def give_back(self) -> None:
        self.running -= 1
        self._changed.set()

    def answered(self) -> None:
        """It answers: a little more may be asked of it."""
        self._failures = 0
        self._wait_s = 0.0
        self._limit = min(float(self.most), self._limit + 1 / self._limit)
        self._changed.set()

    def failed(self, retry_after_s: float = 0.0) -> None:
        """It was overloaded, slow or away; `retry_after_s` is what it said itself."""
        self._limit = max(1.0, self._limit / 2)
        self._failures += 1
        # Those that were under way when it was closed tell nothing new.
        if self.closed_s:
            return
        if retry_after_s or self._wait_s or self._failures >= _FAILURES:
            self._wait_s = min(max(_FIRST_WAIT_S, 2 * self._wait_s), _LAST_WAIT_S)
            self._closed_until = self.clock() + min(max(self._wait_s, retry_after_s), _LAST_WAIT_S)
            self._changed.set()
