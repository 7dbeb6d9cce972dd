"""Samples, versions and leadership: each sample trained once, whoever dies in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from gateway.config import DatabaseSettings
from gateway.errors import NotLeader, StoreError
from gateway.records import (
    FinishReason,
    Judgement,
    PolicyKind,
    PolicyRef,
    Sampling,
    StepRecord,
    SwapRecord,
    TurnKind,
    VersionSpan,
    new_id,
)
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.leadership import Leadership
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.writer import TurnWriter
from tests.factories import digest, next_state, session, turn

WORKER = new_id()


@dataclass
class World:
    database: Database
    writer: TurnWriter
    samples: SampleStore
    policies: PolicyStore
    lineage: UUID

    async def scored(self, count: int = 1, **values: object) -> list[UUID]:
        """Turns judged good, each in a session of its own, in order of arrival."""
        claims = JudgeClaims(self.database)
        ids = []
        for number in range(count):
            one = session(lineage_id=self.lineage)
            first = turn(one, **values)
            await self.writer.commit(one, first, next_state(first, arrived_at=1000.0 + number))
            (job,) = await claims.claim(WORKER, 1, 60)
            await claims.finish(WORKER, job, Judgement(judge="rules", score=1.0), "binary")
            ids.append(first.id)
        return ids

    async def lead(self) -> Leadership:
        leadership = await self.policies.become_leader(self.lineage)
        assert leadership is not None
        return leadership

    async def window(self) -> list[UUID]:
        return [head.id for head in await self.samples.window(self.lineage, 100)]

    def step(self, epoch: int, version: int, ids: list[UUID], **values: object) -> StepRecord:
        policy = PolicyRef(
            lineage_id=self.lineage,
            version=version,
            kind=PolicyKind.LORA,
            uri=f"/v{version}",
            checksum="abc",
        )
        return StepRecord(
            **{
                "id": new_id(),
                "lineage_id": self.lineage,
                "epoch": epoch,
                "from_version": 0,
                "to_version": version,
                "policy": policy,
                "checkpoint": f"/state{version}",
                "sample_ids": tuple(ids),
                "lags": tuple(range(len(ids))),
                "metrics": {"loss": 0.5, "bad": float("nan")},
                "started_at": 10.0,
                "ended_at": 20.0,
                **values,
            }
        )

    async def states(self) -> list[tuple[object, ...]]:
        rows = await self.database.fetch(
            "SELECT state, reason, lease_epoch, step_id, version_lag FROM samples"
            " ORDER BY arrived_at"
        )
        return [tuple(row) for row in rows]


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    settings = DatabaseSettings(spool=tmp_path)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    yield World(database, writer, SampleStore(database), PolicyStore(database), lineage)
    await writer.close()
    await database.close()


async def test_the_window_shows_what_may_be_taken_oldest_first(world: World):
    turns = await world.scored(3)
    heads = await world.samples.window(world.lineage, 2)
    assert [head.turn_id for head in heads] == turns[:2]
    assert [head.arrived_at for head in heads] == [1000.0, 1001.0]
    assert (heads[0].score, heads[0].version_min) == (1.0, 3)
    assert await world.samples.window(new_id(), 10) == []


async def test_a_sample_says_which_rule_judged_it_and_which_are_its_siblings(world: World):
    one, claims = session(lineage_id=world.lineage), JudgeClaims(world.database)
    same = {"request_hash": digest("same")}
    root = turn(one)
    turns = [root, turn(one, root, **same), turn(one, root, **same), turn(one, **same)]
    for number, each in enumerate(turns):
        await world.writer.commit(one, each, next_state(each, arrived_at=1000.0 + number))
        (job,) = await claims.claim(WORKER, 1, 60)
        rule = None if number == 1 else "thanks"
        await claims.finish(WORKER, job, Judgement(judge="j", score=1.0, rule=rule), "binary")
    heads = await world.samples.window(world.lineage, 10)
    assert [head.rule for head in heads] == ["thanks", None, "thanks", "thanks"]
    groups = [head.group for head in heads]
    assert groups[1] == groups[2]
    assert len(set(groups)) == 3
    loaded = await world.samples.load([head.id for head in heads])
    assert [sample.group for sample in loaded] == groups
    assert [sample.rule for sample in loaded] == [head.rule for head in heads]
    assert loaded[0].reply == {"role": "assistant", "content": "Hello."}
    # Judged again by a reader: the later round is the one that counts.
    assert await claims.rejudge(turns[0].id)
    (job,) = await claims.claim(WORKER, 1, 60)
    await claims.finish(WORKER, job, Judgement(judge="llm", score=1.0), "binary")
    assert (await world.samples.window(world.lineage, 1))[0].rule is None


async def test_turns_that_wait_for_a_verdict_are_seen_while_they_may_be_trained(world: World):
    one = session(lineage_id=world.lineage)
    turns = [
        turn(one),
        turn(one, spans=(VersionSpan(version=1, start=0, end=4),)),
        turn(one, kind=TurnKind.SIDE),
        turn(one, trainable=False, untrainable_reason="grammar"),
    ]
    for number, each in enumerate(turns):
        await world.writer.commit(one, each, next_state(each, arrived_at=1000.0 + number))
    assert await world.samples.waiting(world.lineage, 0, 10) == [1000.0, 1001.0]
    assert await world.samples.waiting(world.lineage, 0, 1) == [1000.0]
    assert await world.samples.waiting(world.lineage, 2, 10) == [1000.0]  # version 3 and later
    assert await world.samples.waiting(new_id(), 0, 10) == []
    assert await world.samples.waiting(world.lineage, 0, 10, 1000.5) == [1001.0]
    claims = JudgeClaims(world.database)
    for job in await claims.claim(WORKER, 10, 60):
        await claims.finish(WORKER, job, Judgement(judge="rules", score=1.0), "binary")
    assert await world.samples.waiting(world.lineage, 0, 10) == []
    # One that has a sample already waits for nothing when it is judged again.
    assert await claims.rejudge(turns[0].id)
    assert await world.samples.waiting(world.lineage, 0, 10) == []


async def test_a_sample_is_loaded_exactly_as_it_was_sampled(world: World):
    one = session(lineage_id=world.lineage, user="u7")
    root = turn(one)
    spans = (VersionSpan(3, 0, 1), VersionSpan(4, 1, 4))
    child = turn(
        one,
        root,
        spans=spans,
        sampling=Sampling(temperature=0.5),
        finish_reason=FinishReason.LENGTH,
        prompt_ids=(7, 8),
    )
    await world.writer.commit(one, root, child, next_state(child, arrived_at=1234.5))
    claims = JudgeClaims(world.database)
    (job,) = await claims.claim(WORKER, 1, 60)
    await claims.finish(WORKER, job, Judgement(judge="rules", score=-0.5), "binary")
    (head,) = await world.samples.window(world.lineage, 10)
    assert head.version_min == 3
    (sample,) = await world.samples.load([head.id])
    assert list(sample.prompt_ids) == [1, 2, 3, 10, 11, 12, 13, 7, 8]
    assert list(sample.sampled_ids) == [10, 11, 12, 13]
    assert list(sample.logprobs) == [-0.5, -1.0, -0.25, -2.0]
    assert sample.spans == spans
    assert (sample.score, sample.weight, sample.temperature) == (-0.5, 1.0, 0.5)
    assert sample.user == f"{one.key_id}:u7"
    assert sample.finish_reason is FinishReason.LENGTH
    assert (sample.id, sample.turn_id, sample.session_id) == (head.id, child.id, one.id)
    assert sample.arrived_at == 1234.5
    # Without the ancestor the prompt is not known, and nothing is guessed.
    await world.database.execute("DELETE FROM turns WHERE id = $1", root.id)
    assert await world.samples.load([head.id]) == []


async def test_one_leads_at_a_time_and_epochs_only_rise(world: World):
    first = await world.lead()
    assert first.epoch == 1
    assert await world.policies.become_leader(world.lineage) is None
    assert await first.still_leader()
    await first.release()
    assert not await first.still_leader()
    second = await world.lead()
    assert second.epoch == 2
    await second.release()
    with pytest.raises(StoreError, match="no lineage"):
        await world.policies.become_leader(new_id())


async def test_a_leader_that_is_cut_off_gives_way_and_can_write_nothing_more(world: World):
    await world.scored(2)
    old = await world.lead()
    ids = await world.window()
    await world.samples.lease(world.lineage, old.epoch, ids)
    version = await world.policies.allocate_version(world.lineage, old.epoch)
    assert await world.window() == []
    old._connection.terminate()
    async with asyncio.timeout(120):
        while (new := await world.policies.become_leader(world.lineage)) is None:
            await asyncio.sleep(0.02)
    assert not await old.still_leader()
    # What it had leased is there again, and everything it tries is refused.
    assert await world.window() == ids
    step = world.step(old.epoch, version, ids)
    for attempt in (
        world.policies.advance(step),
        world.policies.allocate_version(world.lineage, old.epoch),
        world.policies.promote(world.lineage, old.epoch, version),
        world.policies.refuse(world.lineage, old.epoch, version, "x"),
        world.samples.lease(world.lineage, old.epoch, ids),
        world.samples.drop(world.lineage, old.epoch, ids, "x", [0, 0]),
    ):
        with pytest.raises(NotLeader):
            await attempt
    assert await world.database.fetchval("SELECT count(*) FROM train_steps") == 0
    # The number it was given is not used again.
    assert await world.policies.allocate_version(world.lineage, new.epoch) == version + 1
    await new.release()


async def test_a_step_names_its_checkpoint_and_consumes_its_samples(world: World):
    turns = await world.scored(3)
    leader = await world.lead()
    ids = (await world.window())[:2]
    await world.samples.lease(world.lineage, leader.epoch, ids)
    version = await world.policies.allocate_version(world.lineage, leader.epoch)
    assert version == 1
    step = world.step(leader.epoch, version, ids)
    assert await world.policies.candidate_of(world.lineage) is None
    await world.policies.advance(step)
    assert await world.states() == [
        ("trained", None, 1, step.id, 0),
        ("trained", None, 1, step.id, 1),
        ("ready", None, None, None, None),
    ]
    rows = await world.database.fetch(
        "SELECT turn_id, outcome, step_id, version FROM verdicts ORDER BY turn_id"
    )
    assert [tuple(row) for row in rows] == [
        (turn_id, "trained", step.id, 1) for turn_id in sorted(turns[:2])
    ]
    row = await world.database.fetchrow("SELECT * FROM train_steps")
    assert row is not None
    assert (row["from_version"], row["to_version"], row["epoch"]) == (0, 1, 1)
    assert row["metrics"] == {"loss": 0.5, "bad": None}
    assert await world.policies.candidate_of(world.lineage) == step.policy
    assert await world.policies.checkpoint_of(world.lineage, 1) == "/state1"
    assert await world.policies.checkpoint_of(world.lineage, 0) is None
    assert (await world.policies.live_of(world.lineage)).version == 0
    await leader.release()


async def test_no_sample_is_trained_twice(world: World):
    await world.scored(2)
    leader = await world.lead()
    ids = await world.window()
    await world.samples.lease(world.lineage, leader.epoch, ids)
    await world.policies.advance(world.step(leader.epoch, 1, ids[:1]))
    with pytest.raises(StoreError, match="1 of 2 samples"):
        await world.policies.advance(world.step(leader.epoch, 2, ids))
    with pytest.raises(asyncpg.UniqueViolationError):
        await world.policies.advance(world.step(leader.epoch, 1, ids[1:]))
    with pytest.raises(StoreError, match="free to take"):
        await world.samples.lease(world.lineage, leader.epoch, ids)
    # Nothing of the refused steps is left.
    assert await world.database.fetchval("SELECT count(*) FROM policies") == 2
    assert await world.database.fetchval("SELECT count(*) FROM train_steps") == 1
    assert [state[0] for state in await world.states()] == ["trained", "leased"]
    await leader.release()


async def test_a_sample_must_be_leased_to_be_trained(world: World):
    await world.scored(1)
    leader = await world.lead()
    with pytest.raises(StoreError, match="1 of 1 samples"):
        await world.policies.advance(world.step(leader.epoch, 1, await world.window()))
    await leader.release()


async def test_released_samples_are_ready_again(world: World):
    await world.scored(2)
    leader = await world.lead()
    ids = await world.window()
    await world.samples.lease(world.lineage, leader.epoch, ids)
    assert await world.samples.release(world.lineage, leader.epoch) == 2
    assert await world.window() == ids
    assert [state[0] for state in await world.states()] == ["ready", "ready"]
    await leader.release()


async def test_dropped_samples_say_why(world: World):
    turns = await world.scored(2)
    leader = await world.lead()
    ids = await world.window()
    await world.samples.lease(world.lineage, leader.epoch, ids[:1])
    assert await world.samples.drop(world.lineage, leader.epoch, ids, "stale", [7, 8]) == 2
    assert await world.samples.drop(world.lineage, leader.epoch, ids, "stale", [7, 8]) == 0
    assert [(state[0], state[1], state[4]) for state in await world.states()] == [
        ("dropped", "stale", 7),
        ("dropped", "stale", 8),
    ]
    rows = await world.database.fetch("SELECT turn_id, outcome, reason FROM verdicts")
    assert {tuple(row) for row in rows} == {(turn_id, "dropped", "stale") for turn_id in turns}
    assert await world.window() == []
    await leader.release()


async def test_a_candidate_goes_live_and_the_one_before_retires(world: World):
    heard: asyncio.Queue[str] = asyncio.Queue()
    await world.database.listen("nextstate_policy", heard.put_nowait)
    leader = await world.lead()
    for version in (1, 2):
        await world.policies.advance(world.step(leader.epoch, version, []))
        await world.policies.promote(world.lineage, leader.epoch, version)
        assert await asyncio.wait_for(heard.get(), 120) == world.lineage.hex
    # Once more is no error: the caller may not know that it succeeded.
    await world.policies.promote(world.lineage, leader.epoch, 2)
    live = await world.policies.live()
    assert {lineage: ref.version for lineage, ref in live.items()} == {world.lineage: 2}
    assert live[world.lineage].adapter == f"{world.lineage.hex}-v2"
    rows = await world.database.fetch("SELECT version, state FROM policies ORDER BY version")
    assert [tuple(row) for row in rows] == [(0, "retired"), (1, "retired"), (2, "live")]
    assert await world.database.fetchval("SELECT live_version FROM lineages") == 2
    with pytest.raises(StoreError, match="no candidate"):
        await world.policies.promote(world.lineage, leader.epoch, 1)
    assert (await world.policies.live_of(world.lineage)).version == 2
    await leader.release()


async def test_a_refused_candidate_never_goes_live(world: World):
    leader = await world.lead()
    await world.policies.advance(world.step(leader.epoch, 1, []))
    await world.policies.advance(world.step(leader.epoch, 2, []))
    await world.policies.refuse(world.lineage, leader.epoch, 2, "probe differs")
    candidate = await world.policies.candidate_of(world.lineage)
    assert candidate is not None
    assert candidate.version == 1
    with pytest.raises(StoreError, match="no candidate"):
        await world.policies.promote(world.lineage, leader.epoch, 2)
    assert (await world.policies.live_of(world.lineage)).version == 0
    row = await world.database.fetchrow("SELECT state, reason FROM policies WHERE version = 2")
    assert tuple(row) == ("refused", "probe differs")
    names = await world.database.fetch("SELECT name, detail ->> 'reason' FROM events")
    assert [tuple(name) for name in names] == [("refused", "probe differs")]
    await leader.release()


async def test_a_candidate_that_was_overtaken_is_not_offered_again(world: World):
    leader = await world.lead()
    await world.policies.advance(world.step(leader.epoch, 1, []))
    await world.policies.advance(world.step(leader.epoch, 2, []))
    await world.policies.promote(world.lineage, leader.epoch, 2)
    assert await world.policies.candidate_of(world.lineage) is None
    await leader.release()


async def test_a_new_leader_waits_for_a_step_that_is_being_written(world: World):
    leader = await world.lead()
    async with world.database.transaction() as connection:
        await connection.execute(
            "SELECT FROM lineages WHERE id = $1 FOR NO KEY UPDATE", world.lineage
        )
        leader._connection.terminate()
        contender = asyncio.create_task(world.policies.become_leader(world.lineage))
        await asyncio.sleep(0.1)
        assert await connection.fetchval("SELECT epoch FROM lineages") == leader.epoch
    successor = await contender or await world.lead()
    assert successor.epoch > leader.epoch
    await successor.release()


async def test_lineages_do_not_touch_each_other(world: World):
    other = await KeyStore(world.database).ensure_lineage("other", "tiny")
    await world.scored(1)
    mine, theirs = await world.lead(), await world.policies.become_leader(other)
    assert theirs is not None
    (sample,) = await world.window()
    with pytest.raises(StoreError):
        await world.samples.lease(other, theirs.epoch, [sample])
    assert await world.samples.drop(other, theirs.epoch, [sample], "x", [0]) == 0
    assert await world.policies.allocate_version(other, theirs.epoch) == 1
    assert await world.policies.allocate_version(world.lineage, mine.epoch) == 1
    assert set(await world.policies.live()) == {world.lineage, other}
    await mine.release()
    await theirs.release()
    with pytest.raises(StoreError, match="no lineage"):
        await world.policies.live_of(new_id())


async def test_swaps_are_recorded(world: World):
    now = time.time()
    swap = SwapRecord(
        lineage_id=world.lineage,
        engine="sglang-0",
        from_version=0,
        to_version=1,
        outcome="loaded",
        load_ms=12.5,
        started_at=now,
        ended_at=now + 1,
    )
    await world.policies.record_swap(swap)
    await world.policies.record_swap(replace(swap, outcome="unreachable", detail="refused"))
    rows = await world.database.fetch("SELECT outcome, detail, load_ms FROM swaps ORDER BY outcome")
    assert [tuple(row) for row in rows] == [
        ("loaded", None, 12.5),
        ("unreachable", "refused", 12.5),
    ]
