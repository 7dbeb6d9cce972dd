"""How stale a sample is, and how many more may be opened before they would be too stale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

#: Official clients wait no longer.
LONGEST_WAIT_S = 60.0
#: What is said before any version has ended.
UNKNOWN_WAIT_S = 15.0

_LATE = 0.1


def capacity(*, max_lag: int, batch: int, backlog: int, running: int) -> int:
    """(η + 1)·b - (backlog + running): trainable turns that may still be started.

    A version consumes `batch` samples (b), so a turn started now waits behind all that are in the
    backlog (turns with a next state and no verdict yet) or running, and is trained on by the
    version that many batches later. At or below 0 it could exceed η = `max_lag`.
    """
    return (max_lag + 1) * batch - (backlog + running)


def lag(live_version: int, version_min: int) -> int:
    """Versions between the one a step starts from and the oldest that sampled the turn."""
    return live_version - version_min


def is_stale(*, live_version: int, version_min: int, max_lag: int) -> bool:
    """Whether a sample is beyond η at the start of a step and so is dropped.

    One from a version that is not behind at all but ahead was sampled by a version since rolled
    back: it is no sample of this policy's past either.
    """
    return not 0 <= lag(live_version, version_min) <= max_lag


class Admission(StrEnum):
    """What becomes of a request that could be trained on."""

    CAPTURED = "captured"
    UNCAPTURED = "uncaptured"
    REJECTED = "rejected"


def in_time(behind: Mapping[int, int], *, max_lag: int, batch: int) -> int:
    """How many of the turns that wait will be trained on before they are too stale.

    `behind` counts them by their lag. Versions consume `batch` each, the oldest first: what stands
    at place k is trained on k // batch versions from now, unless it is dropped by then. Those
    count for nothing, or a line that has grown too long would hold up what comes after it.
    """
    placed = 0
    for now_behind, count in sorted(behind.items(), reverse=True):
        places = (max_lag - now_behind + 1) * batch
        placed += min(count, max(0, places - placed))
    return placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a lineage has to train on, and what its trainer takes of it.

    `backlog` counts turns by the versions that they are behind. `batch` is b, the samples that a
    version really consumes, `full_batch` what one would consume of enough. A version ends every
    `step_s` seconds, the last one ended `since_s` ago; None where none has.
    """

    max_lag: int
    batch: int
    full_batch: int
    backlog: Mapping[int, int]
    running: int
    step_s: float | None = None
    since_s: float | None = None

    @property
    def pending(self) -> int:
        return sum(self.backlog.values()) + self.running

    @property
    def allowed(self) -> int:
        """What may be pending; what one version could take at once is never too much."""
        return max((self.max_lag + 1) * self.batch, self.full_batch)

    @property
    def capacity(self) -> int:
        """By `capacity`; of what will be too stale anyway, at most one version's worth counts.

        Or a line that grew while nobody trained would hold up what comes after it, and then, when
        all of it is dropped at once, let in as much at once.
        """
        waiting = sum(self.backlog.values())
        doomed = self.pending - in_time(
            {**self.backlog, 0: self.backlog.get(0, 0) + self.running},
            max_lag=self.max_lag,
            batch=self.batch,
        )
        left = capacity(
            max_lag=self.max_lag, batch=self.batch, backlog=waiting, running=self.running
        )
        return max(left + max(0, doomed - self.batch), self.full_batch - self.pending)


def admit(load: Load | None, *, opens: bool, rejects: bool, hard_cap: float) -> Admission:
    """Whether a main-line request is served and stored, served only, or turned away.

    `load` is None without a live judge and trainer: nothing is held back then. Only a request
    that `opens` a session, of a key that `rejects`, is ever turned away. Beyond `hard_cap` times
    what may be pending, everything else is served uncaptured.
    """
    if load is None:
        return Admission.CAPTURED
    if opens and rejects and load.capacity <= 0:
        return Admission.REJECTED
    over = load.pending >= hard_cap * load.allowed
    return Admission.UNCAPTURED if over else Admission.CAPTURED


def share(capacity: int, replicas: int) -> int:
    """How much of the capacity one of so many may give away before it looks again."""
    return math.ceil(max(0, capacity) / replicas)


def retry_after(load: Load, ahead: int) -> float:
    """Seconds until a place is free for a request that was turned away, at most LONGEST_WAIT_S.

    `ahead` others have been told to come before it. Each version that ends frees `batch` places;
    the next one ends when the last one did, and `step_s` more.
    """
    needed = 1 - load.capacity + ahead
    if needed <= 0:
        return 0.0
    if load.step_s is None or load.since_s is None:
        return UNKNOWN_WAIT_S
    versions = math.ceil(needed / load.batch)
    # One that is late will not be for long.
    first = max(load.step_s - load.since_s, _LATE * load.step_s)
    return min(first + (versions - 1) * load.step_s, LONGEST_WAIT_S)
