"""A trainer on a real Postgres, with judged turns to train on, for tests."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.config import DatabaseSettings
from gateway.engine.base import Engine
from gateway.records import (
    Judgement,
    Sampling,
    SessionRecord,
    Teaching,
    TurnRecord,
    VersionSpan,
    new_id,
)
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn
from tests.torch_engine import TorchEngine
from trainer.config import TrainerConfig, TrainerSettings
from trainer.service import run

WORKER, TENANT = new_id(), new_id()


@dataclass
class World:
    database: Database
    writer: TurnWriter
    lineage: UUID
    settings: TrainerSettings
    engine: TorchEngine
    clock: itertools.count[int]
    task: asyncio.Task[None] | None = None

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for the trainer to bring something about; its failure is the test's."""
        async with asyncio.timeout(60):
            while not await condition():
                if self.task is not None and self.task.done():
                    self.task.result()
                await asyncio.sleep(0.05)

    async def judged(
        self,
        count: int,
        version: int = 0,
        score: float | None = None,
        method: str = "binary",
        teach: Callable[[TurnRecord], Teaching | None] = lambda _: None,
        **values: Any,
    ) -> list[UUID]:
        """Turns with scores (alternating by default), in order of arrival; their ids.

        `teach` says what a teacher said of a turn, if anything.
        """
        claims, rng, ids = JudgeClaims(self.database), random.Random(count), []
        for number in range(count):
            one, first = self._turn(rng, version, **values)
            after = next_state(first, arrived_at=1e9 + next(self.clock))
            await self.writer.commit(one, first, after)
            (job,) = await claims.claim(WORKER, 1, 60)
            mark = score if score is not None else (1.0 if number % 2 else -1.0)
            verdict = Judgement(judge="rules", score=mark)
            await claims.finish(WORKER, job, verdict, method, teach(first))
            ids.append(first.id)
        return ids

    async def unjudged(self, **values: Any) -> TurnRecord:
        """A turn that nobody has answered yet."""
        one, first = self._turn(random.Random(99), 0, **values)
        await self.writer.commit(one, first)
        return first

    async def judge(self, of: TurnRecord, score: float, method: str) -> None:
        """Answer and judge a turn."""
        claims = JudgeClaims(self.database)
        await self.writer.commit(next_state(of, arrived_at=1e9 + next(self.clock)))
        (job,) = await claims.claim(WORKER, 1, 60)
        await claims.finish(WORKER, job, Judgement(judge="rules", score=score), method)

    def _turn(
        self, rng: random.Random, version: int, **values: Any
    ) -> tuple[SessionRecord, TurnRecord]:
        one = session(lineage_id=self.lineage, tenant_id=TENANT)
        length = rng.randint(1, 6)
        return one, turn(
            one,
            **{
                "prompt_ids": tuple(rng.randrange(256) for _ in range(rng.randint(2, 9))),
                "sampled_ids": tuple(rng.randrange(256) for _ in range(length)),
                "logprobs": (-6.0,) * length,
                "spans": (VersionSpan(version=version, start=0, end=length),),
                "sampling": Sampling(temperature=0.8, top_p=1.0),
                **values,
            },
        )

    @asynccontextmanager
    async def training(self, *engines: Engine) -> AsyncIterator[asyncio.Task[None]]:
        stop = asyncio.Event()
        task = asyncio.create_task(run(self.settings, stop, engines or (self.engine,)))
        self.task = task
        try:
            yield task
        finally:
            stop.set()
            await asyncio.wait_for(task, 60)

    def configure(self, **changes: Any) -> None:
        """Change settings of the trainer; a mapping changes what it names of a section."""
        values = self.settings.trainer.model_dump()
        for name, value in changes.items():
            values[name] = {**values[name], **value} if isinstance(value, dict) else value
        trainer = TrainerConfig.model_validate(values)
        self.settings = self.settings.model_copy(update={"trainer": trainer})

    async def step_metrics(self) -> list[dict[str, float]]:
        """What was stored of each step, in order."""
        rows = await self.database.fetch("SELECT metrics FROM train_steps ORDER BY to_version")
        return [row["metrics"] for row in rows]

    async def reasons(self) -> dict[UUID, str]:
        """Verdicts by turn."""
        rows = await self.database.fetch("SELECT turn_id, reason FROM verdicts")
        return {row["turn_id"]: row["reason"] for row in rows}

    async def live(self) -> int:
        return (await PolicyStore(self.database).live_of(self.lineage)).version

    async def samples(self) -> list[tuple[Any, ...]]:
        rows = await self.database.fetch(
            "SELECT state, reason, version_lag FROM samples ORDER BY arrived_at"
        )
        return [tuple(row) for row in rows]

    async def window_ids(self) -> list[UUID]:
        """Samples that may be taken, the oldest arrival first."""
        heads = await SampleStore(self.database).window(self.lineage, 100)
        return [head.id for head in heads]

    async def policies(self) -> list[tuple[int, str]]:
        rows = await self.database.fetch("SELECT version, state FROM policies ORDER BY version")
        return [tuple(row) for row in rows]

    async def swaps(self) -> list[tuple[str, int, str]]:
        rows = await self.database.fetch(
            "SELECT engine, to_version, outcome FROM swaps ORDER BY started_at, engine"
        )
        return [tuple(row) for row in rows]

    async def steps_of_samples(self) -> list[int]:
        """Steps by sample: all 1 where everything was trained exactly once."""
        rows = await self.database.fetch(
            "SELECT count(t.id) AS steps FROM samples s LEFT JOIN train_steps t ON t.id = s.step_id"
            " GROUP BY s.id"
        )
        return [row["steps"] for row in rows]


@asynccontextmanager
async def open_world(database_url: str, model: Path, home: Path) -> AsyncIterator[World]:
    """Batches of four, a lag of two, everything impatient, and an engine in this process."""
    settings = TrainerSettings(
        model={"path": model},
        database={"url": database_url, "spool": home / "spool"},
        freshness={"batch": 4, "max_lag": 2},
        trainer={
            "directory": home / "policies",
            "poll_s": 0.05,
            "max_wait_s": 1e12,
            "lora": {"rank": 4},
            "optimizer": {"lr": 1e-2},
            # Steps are to be seen in what an engine computes, so they are not held small.
            "loss": {"max_step_kl": None},
            "publish": {"drain_poll_s": 0.05, "retry_s": 0.05, "load_timeout_s": 30},
        },
    )
    database = await Database.open(
        DatabaseSettings(spool=home / "spool"), database_url, application="test"
    )
    writer = await TurnWriter.open(database)
    try:
        lineage = await KeyStore(database).ensure_lineage("default", "tiny")
        engine = TorchEngine(model)
        yield World(database, writer, lineage, settings, engine, itertools.count())
    finally:
        await writer.close()
        await database.close()
