"""What was worked out of texts that come again: system prompts, instructions, a template's own."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

#: What an entry takes beside its text, in bytes.
_ENTRY = 250


class Memory(Generic[T]):
    """Values by text, of two generations: what is not asked for again is forgotten with the older.

    Holds texts of at most `2 * most` characters, of which each entry counts as 250 more. Any number
    of threads may ask at once. What is among the `young` needs no call to be found.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self.young: dict[str, T] = {}
        self._old: dict[str, T] = {}

    def get(self, text: str) -> T | None:
        found = self.young.get(text)
        if found is None and (found := self._old.get(text)) is not None:
            self.put(text, found)
        return found

    def put(self, text: str, value: T) -> None:
        """Keep a value, unless its text alone is more than a quarter of a generation."""
        size = len(text) + _ENTRY
        if size > self._most // 4:
            return
        if self._held + size > self._most:
            self._old, self.young, self._held = self.young, {}, 0
        self.young[text] = value
        self._held += size

    def clear(self) -> None:
        self.young, self._old, self._held = {}, {}, 0
