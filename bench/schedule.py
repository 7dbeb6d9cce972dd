"""What the order of the line costs: whom it trains on, how stale, how fast.

A simulation on the trainer's own `choose`: tasks run side by side, so many batches of them begun
and not yet trained or dropped; each one's next state arrives, then its verdict; a step takes as
long as all places on average need to fill a batch. `python -m bench.schedule`.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from uuid import UUID

from gateway.records import SampleHead
from trainer.schedule import Order, choose, lag

BATCH, MAX_LAG = 16, 4
TASKS, SEED = 6000, 7
#: Batches in flight; admission lets in at most η + 1.
FLIGHTS = (2, 3, MAX_LAG + 1)
#: Orders of the line with their window W, in samples.
ORDERS: Mapping[str, tuple[Order, int]] = {
    "strict": ("strict", BATCH),
    "W = 1.25 B": ("windowed", 5 * BATCH // 4),
    "W = 2 B": ("windowed", 2 * BATCH),
    "greedy": ("greedy", BATCH),
}
#: The share of a task that is over when its next state arrives; the rest is judging.
ARRIVES = 0.25
OUT = Path("build/bench/schedule.json")

Draw = Callable[[random.Random], float]

#: Seconds from a request to its verdict.
WORKLOADS: Mapping[str, Draw] = {
    "short": lambda rng: 1 + rng.expovariate(2.0),
    "long": lambda rng: 60 * rng.lognormvariate(0, 0.6),
    "heavy-tailed": lambda rng: min(rng.paretovariate(1.2), 500.0),
}


@dataclass(slots=True)
class Task:
    number: int
    seconds: float
    version: int
    arrived_at: float
    lag: int | None = None  # at the step that trained it
    dropped: bool = False

    @property
    def head(self) -> SampleHead:
        number = UUID(int=self.number)
        return SampleHead(
            id=number,
            turn_id=number,
            session_id=number,
            score=1.0,
            version_min=self.version,
            arrived_at=self.arrived_at,
        )


@dataclass(slots=True)
class Line:
    """One workload in one order, event by event."""

    draw: Draw
    order: Order
    window: int
    flight: int
    step_s: float
    rng: random.Random
    now: float = 0.0
    version: int = 0
    busy: bool = False
    tasks: list[Task] = field(default_factory=list)
    begun: int = 0  # not yet trained or dropped
    waiting: dict[int, Task] = field(default_factory=dict)
    ready: dict[int, Task] = field(default_factory=dict)
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    ticket: itertools.count[int] = field(default_factory=itertools.count)

    def run(self, count: int) -> list[Task]:
        """`count` tasks, all of which have ended or can be trained by no step any more."""
        self._begin(count)
        while self.events:
            self.now, _, what, number = heapq.heappop(self.events)
            if what == "arrived":
                self.waiting[number] = self.tasks[number]
            elif what == "judged":
                self.ready[number] = self.waiting.pop(number)
            else:
                self.version, self.busy = self.version + 1, False
            if not self.busy:
                self._step()
            self._begin(count)
        return self.tasks

    def _begin(self, count: int) -> None:
        while self.begun < self.flight * BATCH and len(self.tasks) < count:
            number, seconds = len(self.tasks), self.draw(self.rng)
            arrives = self.now + ARRIVES * seconds
            self.tasks.append(Task(number, seconds, self.version, arrives))
            self.begun += 1
            self._at(arrives, "arrived", number)
            self._at(self.now + seconds, "judged", number)

    def _step(self) -> None:
        fresh = self.version - MAX_LAG
        choice = choose(
            [task.head for task in self.ready.values()],
            live_version=self.version,
            max_lag=MAX_LAG,
            batch=BATCH,
            window=self.window,
            min_batch=BATCH,
            overdue_before=-math.inf,
            waiting=[t.arrived_at for t in self.waiting.values() if t.version >= fresh],
            order=self.order,
        )
        for head in choice.dropped:
            self._ended(head).dropped = True
        if choice.due:
            for head in choice.chosen:
                self._ended(head).lag = lag(head, self.version)
            self.busy = True
            self._at(self.now + self.step_s, "stepped", -1)

    def _ended(self, head: SampleHead) -> Task:
        self.begun -= 1
        return self.ready.pop(head.id.int)

    def _at(self, when: float, what: str, number: int) -> None:
        heapq.heappush(self.events, (when, next(self.ticket), what, number))


def line(workload: str, order: str, flight: int, seed: int = SEED) -> Line:
    """A run that is about to begin; the tasks are the same for every order."""
    draw = WORKLOADS[workload]
    mean = fmean(draw(rng) for rng in [random.Random(seed)] for _ in range(TASKS))
    # With all places in use, tasks fill a batch in mean / flight seconds.
    return Line(draw, *ORDERS[order], flight, mean / flight, random.Random(seed))


def figures(tasks: list[Task], seconds: float, step_s: float) -> dict[str, float]:
    """What came of a run.

    `slow_trained` is the share of trained tasks that are of the slowest quarter: 0.25 without a
    bias, less towards fast ones. `slow_dropped` is the share of that quarter dropped as stale.
    `busy` is the share of the time that the trainer was at work.
    """
    trained = [task for task in tasks if task.lag is not None]
    edge = sorted(task.seconds for task in tasks)[len(tasks) * 3 // 4]
    slow = [task for task in tasks if task.seconds >= edge]
    lags = [task.lag for task in trained if task.lag is not None]
    return {
        "trained": len(trained) / len(tasks),
        "dropped": sum(task.dropped for task in tasks) / len(tasks),
        "slow_trained": sum(task.seconds >= edge for task in trained) / len(trained),
        "slow_dropped": sum(task.dropped for task in slow) / len(slow),
        "seconds_ratio": fmean(t.seconds for t in trained) / fmean(t.seconds for t in tasks),
        "lag_mean": fmean(lags),
        "lag_max": float(max(lags)),
        "busy": len(trained) / BATCH * step_s / seconds,
        "trained_per_s": len(trained) / seconds,
    }


Found = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]


def table(found: Found) -> str:
    columns = {
        "trained": "trained",
        "dropped": "stale",
        "slow_trained": "slow 25 %",
        "slow_dropped": "slow stale",
        "lag_mean": "lag",
        "lag_max": "lag max",
        "busy": "busy",
        "trained_per_s": "samples/s",
    }
    head = f"{'tasks':<13} {'in flight':<10} {'order':<11}"
    lines = [head + "".join(f"{name:>11}" for name in columns.values())]
    for workload, flights in found.items():
        for flight, orders in flights.items():
            for order, values in orders.items():
                cells = "".join(f"{values[name]:>11.3g}" for name in columns)
                lines.append(f"{workload:<13} {flight:<10} {order:<11}{cells}")
    return "\n".join(lines)


def main() -> None:
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for workload in WORKLOADS:
        found[workload] = {f"{flight} B": {} for flight in FLIGHTS}
        for flight in FLIGHTS:
            for order in ORDERS:
                one = line(workload, order, flight)
                tasks = one.run(TASKS)
                found[workload][f"{flight} B"][order] = figures(tasks, one.now, one.step_s)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    settings = {"batch": BATCH, "max_lag": MAX_LAG, "tasks": TASKS, "seed": SEED}
    OUT.write_text(json.dumps({"settings": settings, "workloads": found}, indent=1))
    print(table(found))
    print(
        "slow 25 %: share of the slowest quarter among what was trained (0.25: no bias); "
        "slow stale: share of it dropped."
    )
    print(f"{OUT} is written", file=sys.stderr)


if __name__ == "__main__":
    main()
