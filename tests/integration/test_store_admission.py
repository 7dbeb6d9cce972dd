"""What admission counts in Postgres: turns that wait, what versions consume, who is alive."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from gateway.config import DatabaseSettings
from gateway.records import (
    Judgement,
    PolicyKind,
    PolicyRef,
    StepRecord,
    TurnKind,
    TurnRecord,
    VersionSpan,
    new_id,
)
from gateway.store.admission import AdmissionStore, Counts
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.workers import Heartbeat
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn

WORKER = new_id()


@dataclass
class Scene:
    database: Database
    writer: TurnWriter
    lineage: UUID
    gateway: Heartbeat

    async def counts(self, **running: int) -> Counts:
        store = AdmissionStore(self.database, max_lag=2, idle_s=30)
        told = {self.lineage: running.get("running", 0)}
        return (await store.counts(self.gateway.id, told, time.time()))[self.lineage]

    async def turn(
        self, *, version: int = 0, followed: bool = True, **values: object
    ) -> TurnRecord:
        one = session(lineage_id=self.lineage)
        span = VersionSpan(version=version, start=0, end=4)
        first = turn(one, **{"spans": (span,), **values})
        await self.writer.commit(one, first)
        if followed:
            await self.writer.commit(next_state(first))
        return first

    async def judged(self, count: int, score: float = 1.0) -> None:
        claims = JudgeClaims(self.database)
        for job in await claims.claim(WORKER, count, 60):
            await claims.finish(WORKER, job, Judgement(judge="rules", score=score), "binary")

    async def pending(self) -> tuple[dict[int, int], int]:
        counts = await self.counts()
        return dict(counts.backlog), counts.waiting


@pytest.fixture
async def scene(database: Database, tmp_path: Path) -> AsyncIterator[Scene]:
    spooled = Database(
        database.pool, database._url, DatabaseSettings(spool=tmp_path / "spool"), "test"
    )
    writer = await TurnWriter.open(spooled)
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    async with Heartbeat(database, "gateway", interval_s=3600) as gateway:
        yield Scene(database, writer, lineage, gateway)
    await writer.close()


async def test_a_turn_waits_until_it_has_a_verdict(scene: Scene) -> None:
    """Nothing leaks: whatever ends a turn takes it out of the count."""
    first = await scene.turn(followed=False)
    assert await scene.pending() == ({}, 1)
    await scene.writer.commit(next_state(first))
    assert await scene.pending() == ({0: 1}, 0)
    await scene.judged(1)
    assert await scene.pending() == ({0: 1}, 0)
    samples, policies = SampleStore(scene.database), PolicyStore(scene.database)
    leadership = await policies.become_leader(scene.lineage)
    assert leadership is not None
    ids = [head.id for head in await samples.window(scene.lineage, 9)]
    await samples.lease(scene.lineage, leadership.epoch, ids)
    assert await scene.pending() == ({0: 1}, 0)
    await samples.drop(scene.lineage, leadership.epoch, ids, "not_finite", [0])
    assert await scene.pending() == ({}, 0)
    await scene.turn()
    await scene.judged(1, score=0.0)
    assert await scene.pending() == ({}, 0), "a score of 0 is a verdict"
    await leadership.release()


async def test_only_what_may_be_trained_on_waits(scene: Scene) -> None:
    await scene.turn(kind=TurnKind.SIDE)
    await scene.turn(trainable=False, untrainable_reason="grammar")
    await scene.turn(kind=TurnKind.SIDE, followed=False)
    assert await scene.pending() == ({}, 0)
    await scene.turn(kind=TurnKind.UNKNOWN, followed=False)
    assert await scene.pending() == ({}, 1)


async def test_an_idle_chat_does_not_count(scene: Scene) -> None:
    old = UUID(int=int((time.time() - 31) * 1000) << 80)
    idle = await scene.turn(id=old, followed=False)
    assert await scene.pending() == ({}, 0)
    await scene.writer.commit(next_state(idle))
    assert await scene.pending() == ({0: 1}, 0)


async def test_stale_turns_do_not_count_and_others_by_their_lag(scene: Scene) -> None:
    for version in (0, 1, 2, 3, 3):
        await scene.turn(version=version)
    await scene.judged(1)
    await scene.database.execute("UPDATE lineages SET live_version = 3")
    assert await scene.pending() == ({2: 1, 1: 1, 0: 2}, 0)


async def test_b_and_the_pace_are_measured(scene: Scene) -> None:
    empty = await scene.counts()
    assert (empty.batch, empty.step_s, empty.since_s) == (None, None, None)
    samples, policies = SampleStore(scene.database), PolicyStore(scene.database)
    leadership = await policies.become_leader(scene.lineage)
    assert leadership is not None
    for size in (3, 1, 2):
        for _ in range(size):
            await scene.turn()
        await scene.judged(size)
        ids = [head.id for head in await samples.window(scene.lineage, size)]
        await samples.lease(scene.lineage, leadership.epoch, ids)
        version = await policies.allocate_version(scene.lineage, leadership.epoch)
        await policies.advance(_step(scene.lineage, leadership.epoch, version, ids))
    # Versions 1 to 3 were named 60, 40 and 10 seconds ago, by the clock of the database.
    await scene.database.execute(
        "UPDATE policies SET created_at = now() - make_interval("
        "secs => (ARRAY[60, 40, 10])[version::int]) WHERE version > 0"
    )
    counts = await scene.counts()
    assert counts.batch == pytest.approx(2.0)
    assert counts.step_s == pytest.approx(25.0)
    assert counts.since_s == pytest.approx(10.0, abs=1.0)
    await leadership.release()


async def test_what_other_gateways_are_sampling_is_told(scene: Scene) -> None:
    async with Heartbeat(scene.database, "gateway", interval_s=3600) as other:
        store = AdmissionStore(scene.database, max_lag=2, idle_s=30)
        await store.counts(other.id, {scene.lineage: 5}, time.time())
        counts = await scene.counts(running=7)
        assert (counts.elsewhere, counts.replicas) == (5, 2)
        (theirs,) = (await store.counts(other.id, {}, time.time())).values()
        assert theirs.elsewhere == 7
    assert (await scene.counts()).elsewhere == 0, "it is gone"


async def test_a_judge_and_a_trainer_of_the_lineage_must_live(scene: Scene) -> None:
    assert not (await scene.counts()).live
    trains = {"batch": 4, "lineages": {scene.lineage.hex: {"leads": True}}}
    async with Heartbeat(scene.database, "trainer", lambda: trains, interval_s=3600):
        assert not (await scene.counts()).live
        async with Heartbeat(scene.database, "judge", interval_s=3600):
            counts = await scene.counts()
            assert (counts.live, counts.full_batch) == (True, 4)
            trains["lineages"] = {new_id().hex: {"leads": True}}
            async with Heartbeat(scene.database, "trainer", lambda: trains, interval_s=3600):
                assert (await scene.counts()).live
            await scene.database.execute(
                "UPDATE workers SET heartbeat_at = now() - interval '20 s' WHERE kind = 'trainer'"
            )
            assert not (await scene.counts()).live


async def test_a_lineage_that_does_not_train_is_not_counted(scene: Scene) -> None:
    await scene.database.execute("UPDATE lineages SET trains = false")
    store = AdmissionStore(scene.database, max_lag=2, idle_s=30)
    assert await store.counts(scene.gateway.id, {}, time.time()) == {}


def _step(lineage: UUID, epoch: int, version: int, ids: list[UUID]) -> StepRecord:
    policy = PolicyRef(
        lineage_id=lineage, version=version, kind=PolicyKind.LORA, uri="/v", checksum="abc"
    )
    return StepRecord(
        id=new_id(),
        lineage_id=lineage,
        epoch=epoch,
        from_version=version - 1,
        to_version=version,
        policy=policy,
        checkpoint="/state",
        sample_ids=tuple(ids),
        lags=(0,) * len(ids),
        metrics={},
        started_at=1.0,
        ended_at=2.0,
    )


async def test_a_paused_trainer_holds_nobody_back(scene: Scene) -> None:
    name = scene.lineage.hex
    async with Heartbeat(scene.database, "judge"):
        for paused in (False, True):
            told = {"lineages": {name: {"leads": True, "paused": paused}}}
            async with Heartbeat(scene.database, "trainer", lambda told=told: told):
                assert (await scene.counts()).live is not paused
