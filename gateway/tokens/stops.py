"""Stop strings: cut where the first one is complete, never shown in part."""

from __future__ import annotations

from collections.abc import Sequence


def cut_at(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """(where to cut, the stop string) for the stop that is complete first, the longest of those.

    Sampling ends at that moment, so a stop that starts earlier but ends later never matches.
    """
    found = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    if not found:
        return None
    _, start, stop = min(found)
    return start, stop


def held_back(text: str, *marks: str) -> int:
    """Length of the longest end of `text` that may still grow into one of `marks`."""
    longest = min(max(map(len, marks), default=1) - 1, len(text))
    for length in range(longest, 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


class StopCutter:
    """Passes text on up to a stop string; what may become one waits."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        text = self._held + text
        if found := cut_at(text, self._stops):
            start, self.matched = found
            self._held = ""
            return text[:start]
        keep = held_back(text, *self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text
