"""One run: users and facts on one side, what Postgres says of them on the other.

Every second the stored turns, scores and versions are read; they set the users' pace, decide when
the facts are asked again, and end the run.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from openai import AsyncOpenAI

from gateway.demo import measure
from gateway.demo.claims import Goals, check
from gateway.demo.crowd import Crowd
from gateway.demo.facts import ask_facts
from gateway.demo.readings import Reader, Readings
from gateway.demo.report import Report
from gateway.demo.table import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long a run goes on.

    It ends once `versions` are published and the last `final` of them hold `turns` judged first
    turns, or after `budget_s` seconds. `control_share` control conversations go with each trained
    one. `batch` is what the trainer takes for a version.
    """

    versions: int = 12
    final: int = 6
    turns: int = 64
    budget_s: float = 22 * 60
    control_share: float = 0.45
    batch: int = 16
    facts_every: int = 2
    settle_s: float = 15.0
    look_s: float = 1.0
    seed: int = 8
    goals: Goals = field(default_factory=Goals)


FULL = Plan()

#: Only whether the loop closes: two versions, and the newest one answers.
QUICK = Plan(versions=2, final=1, turns=1, budget_s=8 * 60, goals=Goals(versions=2, learning=False))


class Demo:
    """Drives `crowd` and the facts until `plan` is fulfilled, and measures what came of it."""

    def __init__(
        self,
        *,
        plan: Plan,
        reader: Reader,
        crowd: Crowd,
        facts: AsyncOpenAI,
        model: str,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._reader = reader
        self._crowd = crowd
        self._facts = facts
        self._model = model
        self._progress = progress
        self._asking: asyncio.Task[None] | None = None
        self._started = time.monotonic()

    async def run(self) -> Report:
        """Raises StoreUnavailable where Postgres cannot be read."""
        self._started = time.monotonic()
        await ask_facts(self._facts, self._model, self._crowd.tally)
        talking = asyncio.create_task(self._crowd.run())
        try:
            while not talking.done():
                readings = await self._look()
                if self._over(readings):
                    self._crowd.stop.set()
                elif self._facts_due(readings):
                    self._ask_facts()
                await asyncio.wait([talking], timeout=self._plan.look_s)
            await talking
            if self._asking:
                await self._asking
            if self._facts_missing(await self._look()):
                await ask_facts(self._facts, self._model, self._crowd.tally)
            return self._report(await self._settled())
        finally:
            left = [task for task in (talking, self._asking) if task and not task.done()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started

    async def _look(self) -> Readings:
        readings = await self._reader.read()
        self._crowd.pace.waiting = readings.waiting
        self._progress.show(
            measure.rows(readings),
            measure.score(readings.control),
            running=self._crowd.tally.open,
            elapsed_s=self._elapsed_s,
        )
        return readings

    def _over(self, readings: Readings) -> bool:
        if self._elapsed_s >= self._plan.budget_s:
            return True
        since = readings.version - self._plan.final
        last = [turn for turn in measure.judged(readings.turns) if (turn.version or 0) > since]
        return (
            readings.published >= self._plan.versions
            and sum(bool(turn.version) for turn in last) >= self._plan.turns
        )

    def _facts_due(self, readings: Readings) -> bool:
        known = max(measure.facts_right(readings.facts), default=-self._plan.facts_every)
        idle = self._asking is None or self._asking.done()
        return idle and readings.version - known >= self._plan.facts_every

    def _facts_missing(self, readings: Readings) -> bool:
        return max(measure.facts_right(readings.facts), default=-1) < readings.version

    def _ask_facts(self) -> None:
        self._asking = asyncio.create_task(ask_facts(self._facts, self._model, self._crowd.tally))

    async def _settled(self) -> Readings:
        """The last reading, once the judge has seen every turn that was reacted to."""
        deadline = time.monotonic() + self._plan.settle_s
        while True:
            readings = await self._look()
            turns = [*readings.turns, *readings.control]
            if all(turn.score is not None for turn in turns) or time.monotonic() > deadline:
                return readings
            await asyncio.sleep(self._plan.look_s)

    def _report(self, readings: Readings) -> Report:
        rows = measure.rows(readings)
        gain = measure.gain(readings, self._plan.goals.turns)
        return Report(
            rows=rows,
            control=measure.score(readings.control),
            gain=gain,
            claims=check(rows, gain, self._crowd.tally, self._plan.goals),
            tally=self._crowd.tally,
            wall_s=self._elapsed_s,
        )
