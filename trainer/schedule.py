"""Which samples a step trains on (pure).

A turn enters the line when its next state arrives, and every verdict takes it out of its place.
Orders: `windowed` takes only what is among the W oldest, so that quick verdicts cannot push slow
ones back for ever; a turn without a verdict holds its place in the window until it has one, or has
waited for `verdict_wait_s`: a judge that is away ends no training of what others have judged.
`strict` never passes a turn without a verdict; `greedy` waits for none, which trains on what is
judged fast. `make bench-schedule` shows what each costs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal
from uuid import UUID

from gateway.records import SampleHead
from trainer.group import Groups, Unit

Order = Literal["windowed", "strict", "greedy"]
Method = Literal["binary", "grpo", "opd", "combined"]


@dataclass(frozen=True, slots=True)
class Choice:
    """`chosen` are trained on, oldest first; `dropped` are given up, each with the reason.

    `flat_groups` counts groups among the dropped: all of their scores were the same.
    """

    chosen: tuple[SampleHead, ...]
    dropped: Mapping[SampleHead, str] = field(default_factory=dict)
    due: bool = False
    flat_groups: int = 0


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
    method: Method = "binary",
    open_groups: Collection[str] = (),
    groups_before: float = -math.inf,
) -> Choice:
    """Choose at most `batch` of the ready samples `heads`, at most `per_session` of a session.

    `waiting` are the arrival times of turns that have no verdict yet. A choice is `due` when the
    batch is full, or when the oldest of at least `min_batch` samples arrived before
    `overdue_before`. What a session has beyond its number stays for a later step, and holds no
    place in the window of this one.

    With method `grpo` a group is taken whole, once none of `open_groups` is it or its oldest
    member arrived before `groups_before`; until then its members hold their places. It may be
    larger than a batch, and a batch is full where the next group does not fit.
    """
    ordered = sorted(heads, key=lambda head: (head.arrived_at, head.id))
    dropped = {
        head: reason
        for head in ordered
        if (reason := _useless(head, live_version, max_lag, method))
    }
    kept = [head for head in ordered if head not in dropped]
    groups = Groups.of(kept if method == "grpo" else [], open_groups, groups_before)
    dropped |= dict.fromkeys(groups.flat_members, "group_flat")
    alone = [head for head in kept if head not in groups.members]
    units = [Unit((head,)) for head in _shared_out(alone, per_session)]
    line: list[Unit | None] = _lined_up([*units, *groups.units], waiting)
    if order == "windowed":
        line = line[:window]
    elif order == "strict":
        line = list(takewhile(lambda unit: unit is not None, line))
    chosen, full = _taken(line, batch)
    overdue = len(chosen) >= min_batch and chosen[0].arrived_at < overdue_before
    return Choice(tuple(chosen), dropped, due=full or overdue, flat_groups=groups.flat)


def _useless(head: SampleHead, live_version: int, max_lag: int, method: Method) -> str | None:
    """Why a sample trains nothing whatever else is ready, or None."""
    if head.repeated:
        return "repeated"
    if lag(head, live_version) > max_lag:
        return "stale"
    if method == "opd":
        return None if head.taught else "no_teaching"
    if head.score == 0 and not (method == "combined" and head.taught):
        # It says nothing; training on its difference to a baseline would say something.
        return "score_zero"
    return None


def _lined_up(units: Sequence[Unit], waiting: Sequence[float]) -> list[Unit | None]:
    """One entry a place: a unit at its first, None where a place is only held."""
    places: list[tuple[float, int, Unit | None]] = [(at, 0, None) for at in waiting]
    for unit in units:
        first = unit.heads[0]
        places.append((first.arrived_at, 1, None if unit.open else unit))
        if unit.open:
            places += [(head.arrived_at, 0, None) for head in unit.heads[1:]]
    return [unit for _, _, unit in sorted(places, key=lambda place: place[:2])]


def _taken(line: Sequence[Unit | None], batch: int) -> tuple[list[SampleHead], bool]:
    """Whole units, in order, and whether the batch is full."""
    chosen: list[SampleHead] = []
    full = False
    for unit in line:
        if unit is None:
            continue
        if chosen and len(chosen) + len(unit.heads) > batch:
            full = True
            break
        chosen += unit.heads
        if len(chosen) >= batch:
            full = True
            break
    return sorted(chosen, key=lambda head: (head.arrived_at, head.id)), full


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
