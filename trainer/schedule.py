"""Which samples a step trains on (pure).

A turn enters the line when its next state arrives, and every verdict takes it out of its place.
Orders: `windowed` takes only what is among the W oldest, so that quick verdicts cannot push slow
ones back for ever; a turn without a verdict holds its place in the window until it has one.
`strict` never passes a turn without a verdict; `greedy` waits for none, which trains on what is
judged fast. `make bench-schedule` shows what each costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal
from uuid import UUID

from gateway.records import SampleHead

Order = Literal["windowed", "strict", "greedy"]


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
    order: Order = "windowed",
    per_session: int | None = None,
) -> Choice:
    """Choose at most `batch` of the ready samples `heads`, at most `per_session` of a session.

    `waiting` are the arrival times of turns that have no verdict yet. A choice is `due` when the
    batch is full, or when the oldest of at least `min_batch` samples arrived before
    `overdue_before`. What a session has beyond its number stays for a later step, and holds no
    place in the window of this one.
    """
    ordered = sorted(heads, key=lambda head: (head.arrived_at, head.id))
    stale = tuple(head for head in ordered if lag(head, live_version) > max_lag)
    fresh = [head for head in ordered if lag(head, live_version) <= max_lag]
    # A score of 0 says nothing; training on its difference to a baseline would say something.
    neutral = tuple(head for head in fresh if head.score == 0)
    scored = [head for head in fresh if head.score != 0]
    line: list[tuple[float, int, SampleHead | None]] = sorted(
        [(head.arrived_at, 1, head) for head in _shared_out(scored, per_session)]
        + [(at, 0, None) for at in waiting],
        key=lambda place: place[:2],
    )
    if order == "windowed":
        line = line[:window]
    elif order == "strict":
        line = list(takewhile(lambda place: place[2] is not None, line))
    chosen = [head for _, _, head in line if head is not None][:batch]
    overdue = len(chosen) >= min_batch and chosen[0].arrived_at < overdue_before
    return Choice(tuple(chosen), stale, neutral, due=len(chosen) == batch or overdue)


def _shared_out(heads: Sequence[SampleHead], per_session: int | None) -> list[SampleHead]:
    """The first `per_session` of each session, in order."""
    if per_session is None:
        return list(heads)
    seen: Counter[UUID] = Counter()
    kept = []
    for head in heads:
        seen[head.session_id] += 1
        if seen[head.session_id] <= per_session:
            kept.append(head)
    return kept
