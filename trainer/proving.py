"""What an engine computes, held against what a version must give."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from uuid import UUID

from gateway.engine.base import Engine
from gateway.records import PolicyRef, SwapRecord
from trainer.backends.base import Probe, Proof

Scores = tuple[tuple[float, ...], ...]


async def scores(engine: Engine, policy: PolicyRef, probes: Sequence[Probe]) -> Scores:
    """Log-probabilities of ids[start:] of each probe."""
    return tuple([tuple(await engine.score(p.ids, p.start, policy)) for p in probes])


async def difference(engine: Engine, policy: PolicyRef, proof: Proof) -> float:
    """The largest difference of a log-probability; infinite where one is missing or nan."""
    return apart(proof.expected, await scores(engine, policy, proof.probes))


def apart(expected: Sequence[Sequence[float]], found: Sequence[Sequence[float]]) -> float:
    """The largest difference of two values in one place; infinite where a place is not both's."""
    largest = 0.0
    for ours, theirs in zip(expected, found, strict=True):
        if len(ours) != len(theirs):
            return math.inf
        for one, other in zip(ours, theirs, strict=True):
            gap = abs(one - other)
            largest = max(largest, math.inf if math.isnan(gap) else gap)
    return largest


def open_swap(engine: str, lineage_id: UUID, from_version: int, to_version: int) -> SwapRecord:
    """The record of a swap that begins now."""
    now = time.time()
    return SwapRecord(
        lineage_id=lineage_id,
        engine=engine,
        from_version=from_version,
        to_version=to_version,
        outcome="open",
        started_at=now,
        ended_at=now,
    )
