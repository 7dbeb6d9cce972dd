"""Which sequences are computed together (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def group_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of sequences that share a forward pass, longest first to keep padding small."""
    group: list[int] = []
    longest = 0
    for index in _longest_first(lengths):
        if group and longest * (len(group) + 1) > budget:
            yield group
            group = []
        longest = lengths[index] if not group else longest
        group.append(index)
    if group:
        yield group


def fill(lengths: Sequence[int], budget: int) -> list[list[list[int]]]:
    """Indices of sequences by row and forward pass: as `group_by_length`, with shared rows.

    No row is longer than the longest sequence of its pass, so attention costs no more than without
    sharing. Each goes into the first row that has room for it (first fit decreasing).
    """
    passes: list[_Pass] = []
    for index in _longest_first(lengths):
        if not any(one.takes(index, lengths[index]) for one in passes):
            passes.append(_Pass(index, lengths[index], budget))
    return [one.rows for one in passes]


class _Pass:
    """Rows of one width, and how much room each has left."""

    def __init__(self, index: int, width: int, budget: int) -> None:
        self._width, self._budget = width, budget
        self._room = [0]
        self.rows = [[index]]

    def takes(self, index: int, length: int) -> bool:
        """Whether there was room for a sequence."""
        for number, room in enumerate(self._room):
            if length <= room:
                self.rows[number].append(index)
                self._room[number] -= length
                return True
        if self._width * (len(self.rows) + 1) > self._budget:
            return False
        self.rows.append([index])
        self._room.append(self._width - length)
        return True


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
