"""Judging jobs: one holder at a time, one result in effect, a sample or a verdict for each turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest

from gateway.config import DatabaseSettings
from gateway.records import (
    FeedbackRecord,
    FinishReason,
    Judgement,
    SessionRecord,
    TurnKind,
    TurnRecord,
    new_id,
)
from gateway.store.claims import CLAIM, JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.turns import TurnStore
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn

GOOD = Judgement(judge="rules", score=1.0, rule="thanks", confidence=0.9)
NOTHING = Judgement(judge="rules", score=None)
A, B = new_id(), new_id()


@dataclass
class World:
    database: Database
    writer: TurnWriter
    claims: JudgeClaims
    lineage: UUID

    def session(self) -> SessionRecord:
        return session(lineage_id=self.lineage)

    async def followed(self, **values: object) -> TurnRecord:
        one = self.session()
        first = turn(one, **values)
        await self.writer.commit(one, first)
        await self.writer.commit(next_state(first))
        return first

    async def run_out(self) -> None:
        """Let every lease end now."""
        await self.database.execute("UPDATE judgements SET lease_until = now() - interval '1 s'")

    async def verdicts(self) -> list[tuple[object, ...]]:
        rows = await self.database.fetch("SELECT turn_id, outcome, reason FROM verdicts")
        return [tuple(row) for row in rows]

    async def samples(self) -> list[tuple[object, ...]]:
        rows = await self.database.fetch("SELECT turn_id, method, score, state FROM samples")
        return [tuple(row) for row in rows]


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    settings = DatabaseSettings(spool=tmp_path)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    yield World(database, writer, JudgeClaims(database, max_attempts=3), lineage)
    await writer.close()
    await database.close()


async def test_a_job_carries_all_that_a_judge_may_see(world: World):
    one = world.session()
    first = turn(one, finish_reason=FinishReason.LENGTH)
    state = next_state(first, messages=({"role": "tool"}, {"role": "user", "content": "no"}))
    said = FeedbackRecord(id=new_id(), tenant_id=one.tenant_id, turn_id=first.id, score=-1.0)
    await world.writer.commit(one, first, state, said)
    (job,) = await world.claims.claim(A, 10, 60)
    assert (job.turn_id, job.round, job.attempts) == (first.id, 1, 1)
    assert (job.tenant_id, job.session_id, job.lineage_id) == (one.tenant_id, one.id, world.lineage)
    assert (job.kind, job.finish_reason) == (TurnKind.MAIN, FinishReason.LENGTH)
    assert job.request == ({"role": "user", "content": "Hello?"},)
    assert job.reply == {"role": "assistant", "content": "Hello."}
    assert job.next_state == ({"role": "tool"}, {"role": "user", "content": "no"})
    assert job.feedback == (said,)
    assert (job.trainable, job.untrainable_reason, job.version_min) == (True, None, 3)
    assert job.arrived_at == pytest.approx(state.arrived_at, abs=1e-5)


async def test_jobs_are_taken_oldest_first(world: World):
    one = world.session()
    turns = [turn(one) for _ in range(3)]
    times = [3000.0, 1000.0, 2000.0]
    await world.writer.commit(one, *turns)
    for record, at in zip(turns, times, strict=True):
        await world.writer.commit(next_state(record, arrived_at=at))
    jobs = await world.claims.claim(A, 2, 60)
    assert [job.arrived_at for job in jobs] == [1000.0, 2000.0]


async def test_a_job_whose_turn_is_still_in_the_spool_waits_for_it(world: World):
    one = world.session()
    late = turn(one)
    await world.writer.commit(next_state(late))
    assert await world.claims.claim(A, 10, 60) == []
    await world.writer.commit(one, late)
    assert len(await world.claims.claim(A, 10, 60)) == 1


async def test_two_claimers_never_share_a_job(world: World):
    one = world.session()
    turns = [turn(one) for _ in range(120)]
    await world.writer.commit(one, *turns)
    await world.writer.commit(*(next_state(record) for record in turns))
    workers = [new_id() for _ in range(6)]

    async def work(worker: UUID) -> list[UUID]:
        taken: list[UUID] = []
        while jobs := await world.claims.claim(worker, 7, 60):
            taken += [job.turn_id for job in jobs]
        return taken

    taken = await asyncio.gather(*(work(worker) for worker in workers))
    everything = [turn_id for mine in taken for turn_id in mine]
    assert len(everything) == 120
    assert set(everything) == {record.id for record in turns}


async def test_a_good_score_makes_a_sample_and_wakes_the_trainer(world: World):
    woken: asyncio.Queue[str] = asyncio.Queue()
    await world.database.listen("nextstate_samples", woken.put_nowait)
    first = await world.followed()
    (job,) = await world.claims.claim(A, 10, 60)
    assert await world.claims.finish(A, job, GOOD, "binary")
    assert await world.samples() == [(first.id, "binary", 1.0, "ready")]
    assert await world.verdicts() == []
    assert await asyncio.wait_for(woken.get(), 120) == world.lineage.hex
    row = await world.database.fetchrow(
        "SELECT state, judge, rule, score, confidence, lease_owner FROM judgements"
    )
    assert row is not None
    assert tuple(row)[:4] == ("done", "rules", "thanks", 1.0)
    assert row["confidence"] == pytest.approx(0.9)
    assert row["lease_owner"] is None
    row = await world.database.fetchrow("SELECT version_min, session_id, lineage_id FROM samples")
    assert tuple(row) == (3, first.session_id, world.lineage)


@pytest.mark.parametrize(
    ("values", "judgement", "method", "verdict"),
    [
        ({}, NOTHING, "binary", ("unscored", "no_rule_settled")),
        ({}, replace(NOTHING, rule="truncated"), "binary", ("unscored", "truncated")),
        ({}, replace(GOOD, score=0.0), "binary", ("unscored", "score_zero")),
        ({}, GOOD, None, ("dropped", "no_method")),
        (
            {"trainable": False, "untrainable_reason": "temperature_zero"},
            GOOD,
            "binary",
            ("untrainable", "temperature_zero"),
        ),
    ],
)
async def test_what_is_not_trained_on_gets_a_verdict(
    world: World, values, judgement, method, verdict
):
    first = await world.followed(**values)
    (job,) = await world.claims.claim(A, 10, 60)
    assert await world.claims.finish(A, job, judgement, method)
    assert await world.samples() == []
    assert await world.verdicts() == [(first.id, *verdict)]


async def test_a_control_arm_is_judged_and_not_trained(world: World):
    await world.database.execute("UPDATE lineages SET trains = false")
    first = await world.followed()
    (job,) = await world.claims.claim(A, 10, 60)
    assert await world.claims.finish(A, job, GOOD, "binary")
    assert await world.samples() == []
    assert await world.verdicts() == [(first.id, "dropped", "lineage_does_not_train")]


async def test_a_held_turn_is_neither_sample_nor_verdict_until_it_is_extended(world: World):
    one = world.session()
    held = turn(one, kind=TurnKind.UNKNOWN)
    said = FeedbackRecord(id=new_id(), tenant_id=one.tenant_id, turn_id=held.id, score=1.0)
    await world.writer.commit(one, held, said)
    (job,) = await world.claims.claim(A, 10, 60)
    assert job.kind is TurnKind.UNKNOWN
    assert await world.claims.finish(A, job, GOOD, "binary")
    assert (await world.samples(), await world.verdicts()) == ([], [])
    await world.writer.commit(next_state(held))
    (job,) = await world.claims.claim(A, 10, 60)
    assert (job.kind, job.round) == (TurnKind.MAIN, 2)
    assert await world.claims.finish(A, job, GOOD, "binary")
    assert await world.samples() == [(held.id, "binary", 1.0, "ready")]


async def test_a_dead_workers_job_is_taken_and_its_late_result_ignored(world: World):
    first = await world.followed()
    (job,) = await world.claims.claim(A, 10, 60)
    assert await world.claims.claim(B, 10, 60) == []
    await world.run_out()
    (again,) = await world.claims.claim(B, 10, 60)
    assert (again.turn_id, again.attempts) == (first.id, 2)
    assert not await world.claims.finish(A, job, replace(GOOD, score=-1.0), "binary")
    assert await world.samples() == []
    assert await world.claims.finish(B, again, GOOD, "binary")
    assert not await world.claims.finish(B, again, GOOD, "binary")
    assert await world.samples() == [(first.id, "binary", 1.0, "ready")]


async def test_a_worker_that_took_its_own_job_again_holds_only_the_newer_lease(world: World):
    await world.followed()
    (old,) = await world.claims.claim(A, 10, 60)
    await world.run_out()
    (new,) = await world.claims.claim(A, 10, 60)
    assert not await world.claims.finish(A, old, GOOD, "binary")
    assert await world.claims.extend(A, [old], 60) == 0
    assert await world.claims.finish(A, new, GOOD, "binary")


async def test_an_extended_lease_is_kept(world: World):
    await world.followed()
    (job,) = await world.claims.claim(A, 10, 60)
    await world.run_out()
    assert await world.claims.extend(B, [job], 60) == 0
    assert await world.claims.extend(A, [], 60) == 0
    assert await world.claims.extend(A, [job], 60) == 1
    assert await world.claims.claim(B, 10, 60) == []


async def test_a_failed_job_comes_back_later_and_is_set_aside_in_the_end(world: World):
    first = await world.followed()
    (job,) = await world.claims.claim(A, 10, 60)
    assert await world.claims.fail(A, job, "endpoint down", 3600)
    assert await world.claims.claim(A, 10, 60) == []
    await world.database.execute("UPDATE judgements SET run_after = now()")
    (job,) = await world.claims.claim(A, 10, 60)
    assert not await world.claims.fail(B, job, "not mine", None)
    assert await world.claims.fail(A, job, "bad\0", None)
    row = await world.database.fetchrow("SELECT state, reason FROM judgements")
    assert tuple(row) == ("dead", "bad\ufffd")
    assert await world.verdicts() == [(first.id, "unscored", "judging_failed")]
    assert await world.claims.claim(A, 10, 60) == []


async def test_a_job_that_kills_every_worker_is_buried(world: World):
    first = await world.followed()
    for attempt in range(3):
        (job,) = await world.claims.claim(A, 10, 60)
        assert job.attempts == attempt + 1
        await world.run_out()
    assert await world.claims.claim(A, 10, 60) == []
    row = await world.database.fetchrow("SELECT state, reason FROM judgements")
    assert tuple(row) == ("dead", "lease_expired")
    assert await world.verdicts() == [(first.id, "unscored", "judging_failed")]


async def test_judging_again_changes_a_sample_until_it_is_taken(world: World):
    first = await world.followed()

    async def judge(judgement: Judgement) -> None:
        assert await world.claims.rejudge(first.id)
        (job,) = await world.claims.claim(A, 10, 60)
        assert await world.claims.finish(A, job, judgement, "binary")

    (job,) = await world.claims.claim(A, 10, 60)
    assert await world.claims.finish(A, job, GOOD, "binary")
    await judge(replace(GOOD, score=-1.0))
    assert await world.samples() == [(first.id, "binary", -1.0, "ready")]
    await judge(NOTHING)
    assert await world.samples() == [(first.id, "binary", -1.0, "dropped")]
    assert await world.verdicts() == [(first.id, "unscored", "no_rule_settled")]
    await judge(GOOD)
    assert await world.samples() == [(first.id, "binary", 1.0, "ready")]
    assert await world.verdicts() == []
    await world.database.execute("UPDATE samples SET state = 'trained'")
    await world.database.execute(
        "INSERT INTO verdicts (turn_id, outcome, reason) VALUES ($1, 'trained', 'trained')",
        first.id,
    )
    await judge(replace(GOOD, score=-1.0))
    await judge(NOTHING)
    assert await world.samples() == [(first.id, "binary", 1.0, "trained")]
    assert await world.verdicts() == [(first.id, "trained", "trained")]
    rounds = await world.database.fetch("SELECT round, state FROM judgements ORDER BY round")
    assert [tuple(row) for row in rounds] == [(n, "done") for n in range(1, 7)]


async def test_a_round_that_was_overtaken_changes_nothing_but_its_own_row(world: World):
    slow, failing, dying = [await world.followed() for _ in range(3)]
    old = {job.turn_id: job for job in await world.claims.claim(A, 10, 60)}
    for one in (slow, failing, dying):
        word = FeedbackRecord(id=new_id(), tenant_id=one.tenant_id, turn_id=one.id, score=-1.0)
        await world.writer.commit(word)
    for job in await world.claims.claim(B, 10, 60):
        assert job.round == 2
        assert await world.claims.finish(B, job, replace(GOOD, score=-1.0), "binary")
    # What was said while the first round was under way stands, whatever comes of that round.
    assert await world.claims.finish(A, old[slow.id], GOOD, "binary")
    assert await world.claims.fail(A, old[failing.id], "no", None)
    await world.database.execute("UPDATE judgements SET attempts = 3 WHERE state = 'leased'")
    await world.run_out()
    assert await world.claims.claim(A, 10, 60) == []
    assert sorted(await world.samples()) == sorted(
        (one.id, "binary", -1.0, "ready") for one in (slow, failing, dying)
    )
    assert await world.verdicts() == []
    rows = await world.database.fetch(
        "SELECT state, score FROM judgements WHERE round = 1 ORDER BY turn_id"
    )
    assert [tuple(row) for row in rows] == [("done", 1.0), ("dead", None), ("dead", None)]


async def test_one_round_waits_at_a_time_and_only_within_the_tenant(world: World):
    first = await world.followed()
    assert not await world.claims.rejudge(first.id)
    (job,) = await world.claims.claim(A, 10, 60)
    await world.claims.finish(A, job, NOTHING, "binary")
    assert not await world.claims.rejudge(first.id, new_id())
    assert not await world.claims.rejudge(new_id())
    assert await world.claims.rejudge(first.id, first.tenant_id)


async def test_a_turn_given_up_as_silent_that_is_followed_after_all_is_trained_on(world: World):
    one = world.session()
    first = turn(one)
    await world.writer.commit(one, first)
    turns = TurnStore(world.database, 10)
    assert await turns.end_session(one.tenant_id, one.id, "client_done")
    assert await world.verdicts() == [(first.id, "unscored", "no_next_state")]
    await world.writer.commit(next_state(first))
    (job,) = await world.claims.claim(A, 10, 60)
    assert await world.claims.finish(A, job, GOOD, "binary")
    assert await world.verdicts() == []
    assert await world.samples() == [(first.id, "binary", 1.0, "ready")]


async def test_claiming_reads_only_what_is_open(world: World):
    await world.database.execute(
        "INSERT INTO judgements (turn_id, tenant_id, state)"
        " SELECT gen_random_uuid(), gen_random_uuid(), 'done' FROM generate_series(1, 5000)"
    )
    await world.followed()
    await world.database.execute("ANALYZE judgements")
    plan = await world.database.fetch(f"EXPLAIN {CLAIM}", A, 16, 60.0, [])
    lines = [row[0] for row in plan]
    assert any("judgements_open" in line for line in lines)
    assert not any("Seq Scan on judgements" in line for line in lines)
