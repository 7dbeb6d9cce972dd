"""Where the time between two steps goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Spent:
    """Seconds by what they were spent on, since the last time that they were asked for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._seconds[what] += self._clock() - began

    def figures(self) -> dict[str, float]:
        """`step_s`, and the share of it that each thing took: `share_wait`, `share_train`, ..."""
        now = self._clock()
        whole = now - self._since
        found = {"step_s": whole}
        for what, seconds in self._seconds.items():
            found[f"share_{what}"] = seconds / whole if whole > 0 else 0.0
        self._since = now
        self._seconds.clear()
        return found
