"""Claims: attempts that do not count, groups, redacted turns, usage, and what a teacher reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.config import DatabaseSettings
from gateway.errors import StoreError
from gateway.records import JudgeJob, Judgement, SessionRecord, Teaching, TurnRecord, new_id
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.samples import SampleStore
from gateway.store.teachings import Teachings
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn

BAD = Judgement(judge="rules", score=-1.0, rule="correction", hint="Say the country.")
A = new_id()


@dataclass
class Desk:
    database: Database
    writer: TurnWriter
    claims: JudgeClaims
    lineage: UUID

    async def job(self, **values: Any) -> tuple[SessionRecord, TurnRecord, JudgeJob]:
        of = session(lineage_id=self.lineage)
        one = turn(of, **values)
        await self.writer.commit(of, one)
        await self.writer.commit(next_state(one))
        (job,) = await self.claims.claim(A, 10, 60)
        return of, one, job

    async def value(self, sql: str) -> Any:
        return await self.database.fetchval(sql)


@pytest.fixture
async def desk(database_url: str, tmp_path: Path) -> AsyncIterator[Desk]:
    database = await Database.open(
        DatabaseSettings(spool=tmp_path), database_url, application="test"
    )
    writer = await TurnWriter.open(database)
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    yield Desk(database, writer, JudgeClaims(database, max_attempts=2), lineage)
    await writer.close()
    await database.close()


def teaching(**values: Any) -> Teaching:
    return Teaching(**{
        "teacher": "base", "lineage_id": None, "version": 0, "model": "tiny", "hint": "h",
        "prompt_len": 9, "logprobs": (-1.0, -2.0, -3.0, -4.0), **values,
    })  # fmt: skip


async def test_an_attempt_that_does_not_count_is_not_counted(desk: Desk) -> None:
    _, _, job = await desk.job()
    for _ in range(5):
        assert job.attempts == 1
        assert await desk.claims.fail(A, job, "away", 0.0, counted=False)
        (job,) = await desk.claims.claim(A, 10, 60)
    assert await desk.claims.fail(A, job, "a bug", 0.0)
    (job,) = await desk.claims.claim(A, 10, 60)
    assert job.attempts == 2


async def test_a_redacted_turn_is_judged_and_never_trained(desk: Desk) -> None:
    _, one, job = await desk.job(redacted=True)
    assert await desk.claims.finish(A, job, BAD, "binary")
    assert await desk.value("SELECT score FROM judgements") == -1
    row = await desk.database.fetchrow("SELECT turn_id, outcome, reason FROM verdicts")
    assert tuple(row) == (one.id, "untrainable", "redacted")
    assert await desk.value("SELECT count(*) FROM samples") == 0


async def test_samples_of_one_task_are_of_one_group_by_its_name_or_by_the_request(
    desk: Desk,
) -> None:
    samples = SampleStore(desk.database)
    tenant, group = new_id(), set()
    for number in range(2):
        of = session(lineage_id=desk.lineage, tenant_id=tenant)
        one = turn(of, group_id="task 7", request_hash=bytes([number]) * 32)
        await desk.writer.commit(of, one)
        await desk.writer.commit(next_state(one))
    for job in await desk.claims.claim(A, 10, 60):
        assert await desk.claims.finish(A, job, BAD, "binary")
    group = {head.group for head in await samples.window(desk.lineage, 10)}
    assert group == {f"{tenant}:task 7"}
    assert await desk.value("SELECT array_agg(DISTINCT group_id) FROM samples") == ["task 7"]
    # Another tenant's task of the same name, and a turn without one, are groups of their own.
    for values in ({"group_id": "task 7"}, {}):
        _, _, job = await desk.job(**values)
        assert await desk.claims.finish(A, job, BAD, "binary")
    assert len({head.group for head in await samples.window(desk.lineage, 10)}) == 3


async def test_a_teaching_is_stored_with_its_judgement_or_neither_is(desk: Desk) -> None:
    _, _, job = await desk.job()
    for wrong in (
        teaching(top_ids=((1, 2),), top_logprobs=((-1.0, -2.0),)),
        teaching(logprobs=(float("nan"), -1.0, -1.0, -1.0)),
    ):
        with pytest.raises(StoreError):
            await desk.claims.finish(A, job, BAD, "opd", wrong)
    assert await desk.value("SELECT state FROM judgements") == "leased"
    right = teaching(
        top_ids=((1, 2),) * 4, top_logprobs=((-0.5, -1.5),) * 4, lineage_id=desk.lineage
    )
    usage = {"teacher_ms": 5}
    assert await desk.claims.finish(A, job, replace(BAD, usage=usage), "opd", right)
    assert await desk.value("SELECT usage FROM judgements") == usage
    (head,) = await SampleStore(desk.database).window(desk.lineage, 10)
    (sample,) = await SampleStore(desk.database).load([head.id])
    assert sample.teaching is not None
    assert list(sample.teaching.logprobs) == [-1, -2, -3, -4]
    assert [list(row) for row in sample.teaching.top_ids] == [[1, 2]] * 4
    assert [list(row) for row in sample.teaching.top_logprobs] == [[-0.5, -1.5]] * 4
    # Whoever no longer holds the job stores no teaching either.
    assert not await desk.claims.finish(A, job, BAD, "opd", right)
    assert await desk.value("SELECT count(*) FROM teachings") == 1


async def test_a_score_of_zero_is_a_sample_only_where_a_teacher_spoke_and_is_listened_to(
    desk: Desk,
) -> None:
    neutral = replace(BAD, score=0.0)
    for method, taught, wanted in (
        ("binary", teaching(), 0), ("opd", None, 0), ("combined", teaching(), 1),
    ):  # fmt: skip
        _, _, job = await desk.job()
        assert await desk.claims.finish(A, job, neutral, method, taught)
        assert await desk.value("SELECT count(*) FROM samples") == wanted


async def test_a_lesson_is_the_whole_conversation_and_the_ids_as_they_were(desk: Desk) -> None:
    of = session(lineage_id=desk.lineage)
    first = turn(of)
    asked = ({"role": "tool", "content": "42"}, {"role": "user", "content": "And?"})
    second = turn(of, first, messages=asked, prompt_ids=(7, 8), sampled_ids=(20, 21, 22, 23))
    await desk.writer.commit(of, first, second)
    lesson = await Teachings(desk.database).lesson(second.id)
    assert lesson is not None
    assert lesson.messages == (*first.messages, first.reply, *asked)
    assert list(lesson.prompt_ids) == [1, 2, 3, 10, 11, 12, 13, 7, 8]
    assert (list(lesson.sampled_ids), lesson.lineage_id) == ([20, 21, 22, 23], desk.lineage)
    # An ancestor that is not stored (yet) leaves a gap, and text has no ids.
    orphan = turn(of, turn(of))
    silent = turn(
        of, prompt_ids=(), sampled_ids=(), logprobs=(), spans=(), trainable=False,
        untrainable_reason="no_token_ids",
    )  # fmt: skip
    await desk.writer.commit(orphan, silent)
    for turn_id in (orphan.id, silent.id, new_id()):
        assert await Teachings(desk.database).lesson(turn_id) is None
