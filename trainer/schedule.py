"""Which samples a step trains on: windowed FIFO (pure).

A turn enters the line when its next state arrives. Only those among the W oldest may be taken,
so that quick verdicts cannot push slow ones back for ever; a turn without a verdict holds its
place in the window until it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.records import SampleHead


@dataclass(frozen=True, slots=True)
class Choice:
    """`chosen` are trained on, `stale` and `neutral` dropped; each oldest first."""

    chosen: tuple[SampleHead, ...]
    stale: tuple[SampleHead, ...]
    neutral: tuple[SampleHead, ...]
    due: bool


def lag(head: SampleHead, live_version: int) -> int:
    """Versions between the oldest token of a sample and the policy that trains on it."""
    return max(0, live_version - head.version_min)


def choose(
    heads: Sequence[SampleHead],
    *,
    live_version: int,
    max_lag: int,
    batch: int,
    window: int,
    min_batch: int,
    overdue_before: float,
    waiting: Sequence[float] = (),
) -> Choice:
    """Choose at most `batch` of the ready samples `heads`.

    `waiting` are the arrival times of turns that have no verdict yet. A choice is `due` when the
    batch is full, or when the oldest of at least `min_batch` samples arrived before
    `overdue_before`.
    """
    ordered = sorted(heads, key=lambda head: (head.arrived_at, head.id))
    stale = tuple(head for head in ordered if lag(head, live_version) > max_lag)
    fresh = [head for head in ordered if lag(head, live_version) <= max_lag]
    # A score of 0 says nothing; training on its difference to a baseline would say something.
    neutral = tuple(head for head in fresh if head.score == 0)
    scored = [head for head in fresh if head.score != 0]
    line = sorted(
        [(head.arrived_at, 1, head) for head in scored] + [(at, 0, None) for at in waiting],
        key=lambda place: place[:2],
    )
    chosen = [head for _, _, head in line[:window] if head is not None][:batch]
    overdue = len(chosen) >= min_batch and chosen[0].arrived_at < overdue_before
    return Choice(tuple(chosen), stale, neutral, due=len(chosen) == batch or overdue)
