"""Admission: back-pressure on new sessions that ask to be trained on, and on nothing else.

No request asks Postgres. Twice in `refresh_s`, and at once when a version has consumed its
samples, a gateway tells how many turns it is sampling and reads what there is; in between it adds
what it has begun itself. So what it knows of the other replicas is at most `refresh_s` old, and by
that much it may err: it takes the capacity for larger by at most what the others begin in that
time, for smaller by at most what ends or leaves the line in it. Of the room that it reads it gives
away its share, and reads again before it gives more: so replicas that see the same room at once
do not fill it several times over. Where counting takes long it is done less often, and what is
known is older.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from heapq import heappop, heappush
from typing import Any
from uuid import UUID

import msgspec

from gateway.config import FreshnessSettings
from gateway.errors import TooManyRequests
from gateway.freshness import LONGEST_WAIT_S, Admission, Load, admit, retry_after, share
from gateway.store.admission import Counts

#: Counts older than this, and than three refreshes, hold nobody back: Postgres is away, and serving
#: goes on.
_BELIEVED_S = 10.0


class _Sampling(msgspec.Struct):
    """What `Admitter.sampling` gives; as a generator it would cost every request more."""

    running: Counter[UUID]
    since: Counter[UUID]
    lineage_id: UUID
    turns: int

    def __enter__(self) -> None:
        self.running[self.lineage_id] += self.turns

    def __exit__(self, *_: object) -> None:
        self.running[self.lineage_id] -= self.turns
        self.since[self.lineage_id] += self.turns


class Admitter:
    """What one gateway knows of every lineage's line, and what it has added to it since."""

    def __init__(
        self, settings: FreshnessSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._believed_s = max(_BELIEVED_S, 3 * settings.refresh_s)
        self._counts: Mapping[UUID, Counts] = {}
        self._read_at = -math.inf
        self._running: Counter[UUID] = Counter()
        # Stored, but perhaps not counted yet: while the last read was made, and since.
        self._uncounted: Counter[UUID] = Counter()
        self._since: Counter[UUID] = Counter()
        self._told: defaultdict[UUID, list[float]] = defaultdict(list)
        self._share: dict[UUID, int] = {}
        #: Called where the share is used up while there may be room.
        self.want: Callable[[], None] = lambda: None

    def running(self) -> dict[UUID, int]:
        """Turns that this gateway is sampling."""
        return {lineage: count for lineage, count in self._running.items() if count}

    def reading(self) -> dict[UUID, int]:
        """Counts are about to be read, with which the others are told what is running here.

        What has ended by now is stored, and will be among them.
        """
        self._uncounted += self._since
        self._since.clear()
        return self.running()

    def learn(self, counts: Mapping[UUID, Counts], at: float) -> None:
        """What was read; `at` is when the reading began."""
        self._counts, self._read_at = counts, at
        self._uncounted = Counter()
        self._share = {
            lineage: share(load.capacity, counts[lineage].replicas)
            for lineage in counts
            if (load := self.load(lineage)) is not None
        }

    def load(self, lineage_id: UUID) -> Load | None:
        """The line as it is now, as far as is known; None where nothing is held back."""
        counts = self._counts.get(lineage_id)
        if counts is None or not counts.live:
            return None
        age = self._clock() - self._read_at
        if age > self._believed_s:
            return None
        full = counts.full_batch or self._settings.batch
        own = self._running[lineage_id] + self._uncounted[lineage_id] + self._since[lineage_id]
        return Load(
            max_lag=self._settings.max_lag,
            batch=max(1, int(counts.batch)) if counts.batch is not None else full,
            full_batch=full,
            backlog=counts.backlog,
            running=counts.waiting + counts.elsewhere + own,
            step_s=counts.step_s,
            since_s=None if counts.since_s is None else counts.since_s + age,
        )

    def admit(self, lineage_id: UUID, *, opens: bool, rejects: bool) -> bool:
        """Whether a main-line request is to be captured.

        Raises TooManyRequests for one that `opens` a session, of a key that `rejects`, while more
        waits than versions will consume in time.
        """
        load = self.load(lineage_id)
        if load is None:
            return True
        found = admit(load, opens=opens, rejects=rejects, hard_cap=self._settings.hard_cap)
        if found is not Admission.REJECTED:
            if not (opens and rejects):
                return found is Admission.CAPTURED
            if self._share[lineage_id] > 0:
                self._share[lineage_id] -= 1
                return True
            self.want()
        wait_s = self._place_in_line(lineage_id, load)
        raise TooManyRequests(
            f"Training is behind: {load.pending} turns wait, and versions consume "
            f"{load.batch} each. No new session can be opened for about {wait_s:.0f} s; sessions "
            "that are open are served.",
            retry_after_s=wait_s,
            code="training_behind",
        )

    def sampling(self, lineage_id: UUID, turns: int) -> AbstractContextManager[None]:
        """Count turns as running while they are sampled and stored."""
        return _Sampling(self._running, self._since, lineage_id, turns)

    def describe(self, lineage_id: UUID) -> dict[str, Any]:
        """`{"state", …}`: off without a live judge and trainer, else open, full or over."""
        load = self.load(lineage_id)
        if load is None:
            return {"state": "off"}
        over = load.pending >= self._settings.hard_cap * load.allowed
        return {
            "state": "open" if load.capacity > 0 else "over" if over else "full",
            "capacity": load.capacity,
            "backlog": sum(load.backlog.values()),
            "running": load.running,
            "batch": load.batch,
            "step_s": load.step_s,
            "age_s": round(self._clock() - self._read_at, 3),
        }

    def state(self) -> str:
        """The worst state of any lineage."""
        states = {str(self.describe(lineage)["state"]) for lineage in self._counts}
        return next((state for state in ("over", "full", "open") if state in states), "off")

    def _place_in_line(self, lineage_id: UUID, load: Load) -> float:
        """Whole seconds until a place is free for one more, behind those that were told before.

        The other replicas have told about as many.
        """
        now, told = self._clock(), self._told[lineage_id]
        while told and told[0] <= now:
            heappop(told)
        ahead = len(told) * self._counts[lineage_id].replicas
        wait_s = float(max(1, math.ceil(retry_after(load, ahead))))
        if wait_s < LONGEST_WAIT_S:
            heappush(told, now + wait_s)
        return wait_s
