"""The loop around jobs, with claims kept in memory: what happens when things go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import structlog

from gateway.errors import JudgeError, JudgeUnavailable, StoreUnavailable
from gateway.records import (
    FeedbackRecord,
    FinishReason,
    JudgeJob,
    Judgement,
    Teaching,
    TurnKind,
    new_id,
)
from judge.config import JudgeConfig
from judge.evaluate import RuleJudge
from judge.jobs import JobLoop
from judge.patience import patience
from judge.rules import Rule
from judge.verdicts import Evidence, Finding, Judge

SECRET = "the launch code is 0000"


def job(answer: str = "Thanks!") -> JudgeJob:
    return JudgeJob(
        turn_id=new_id(), round=1, tenant_id=UUID(int=1), session_id=new_id(),
        lineage_id=UUID(int=2), kind=TurnKind.MAIN, attempts=0,
        request=({"role": "user", "content": SECRET},),
        reply={"role": "assistant", "content": "Noted."},
        next_state=({"role": "user", "content": answer},), feedback=(),
        finish_reason=FinishReason.STOP, trainable=True, untrainable_reason=None, version_min=3,
        arrived_at=1.0,
    )  # fmt: skip


@dataclass
class Memory:
    """Claims without a database: a queue, what was finished, what was set aside."""

    queued: list[JudgeJob] = field(default_factory=list)
    finished: list[tuple[JudgeJob, Judgement]] = field(default_factory=list)
    failed: list[tuple[JudgeJob, str, float]] = field(default_factory=list)
    dead: list[tuple[JudgeJob, str]] = field(default_factory=list)
    taught: list[Teaching | None] = field(default_factory=list)
    extended: int = 0
    away: int = 0
    refuse: Callable[[JudgeJob], bool] = lambda _: False
    held: bool = True
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def _reach(self) -> None:
        if self.away > 0:
            self.away -= 1
            raise StoreUnavailable("Postgres cannot be reached: gone")

    async def claim(self, worker_id: UUID, limit: int, lease_s: float) -> list[JudgeJob]:
        self._reach()
        taken, self.queued[:] = self.queued[:limit], self.queued[limit:]
        return [replace(one, attempts=one.attempts + 1) for one in taken]

    async def finish(
        self,
        worker_id: UUID,
        job: JudgeJob,
        judgement: Judgement,
        sample_method: str | None,
        teaching: Teaching | None = None,
    ) -> bool:
        self._reach()
        if self.refuse(job):
            raise ValueError(f"a row that cannot be stored: {SECRET}")
        self.finished.append((job, judgement))
        self.taught.append(teaching)
        self.changed.set()
        return self.held

    async def fail(
        self,
        worker_id: UUID,
        job: JudgeJob,
        error: str,
        retry_after_s: float | None,
        *,
        counted: bool = True,
    ) -> bool:
        self._reach()
        if retry_after_s is None:
            self.dead.append((job, error))
        else:
            self.failed.append((job, error, retry_after_s))
            self.queued.append(job if counted else replace(job, attempts=job.attempts - 1))
        self.changed.set()
        return True

    async def extend(self, worker_id: UUID, jobs: Sequence[JudgeJob], lease_s: float) -> int:
        self.extended += len(jobs)
        self.changed.set()
        return len(jobs)

    async def until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not ready():
                await self.changed.wait()
                self.changed.clear()


@asynccontextmanager
async def working(
    claims: Memory, judges: Sequence[Judge] = (RuleJudge(),), **settings: Any
) -> AsyncIterator[JobLoop]:
    config = JudgeConfig(**{"poll_s": 0.01, "retry_after_s": 0.5, **settings})
    loop, stop = JobLoop(claims, judges, config, new_id()), asyncio.Event()
    task = asyncio.create_task(loop.run(stop))
    try:
        yield loop
    finally:
        stop.set()
        async with asyncio.timeout(120):
            await task


async def test_more_jobs_than_hands_are_all_judged_once() -> None:
    claims = Memory(queued=[job() for _ in range(25)])
    wanted = {one.turn_id for one in claims.queued}
    async with working(claims, concurrency=4, poll_s=60) as loop:
        await claims.until(lambda: len(claims.finished) == 25)
    assert {one.turn_id for one, _ in claims.finished} == wanted
    assert loop.counts.report() == {
        "claimed": 25, "scored": 25, "unscored": 0, "failed": 0, "dead": 0, "lost": 0
    }  # fmt: skip


async def test_a_notification_is_enough_to_look_again() -> None:
    claims = Memory()
    async with working(claims, poll_s=60) as loop:
        await asyncio.sleep(0.02)
        claims.queued.append(job())
        loop.wake()
        await claims.until(lambda: len(claims.finished) == 1)


async def test_a_crash_in_a_rule_fails_that_job_alone_and_is_bounded() -> None:
    def explode(evidence: Evidence) -> Finding | None:
        if evidence.answers == ("boom",):
            raise ZeroDivisionError(SECRET)
        return None

    judge = RuleJudge(rules=(Rule("explosive", 0.5, explode), *RuleJudge().rules))
    claims = Memory(queued=[job("boom"), job(), job()])
    with structlog.testing.capture_logs() as logs:
        async with working(claims, [judge], max_attempts=3) as loop:
            await claims.until(lambda: len(claims.finished) == 2 and len(claims.dead) == 1)
    assert [(one.attempts, wait) for one, _, wait in claims.failed] == [(1, 0.5), (2, 1.0)]
    assert claims.dead[0][1] == f"ZeroDivisionError: {SECRET}"
    assert (loop.counts.scored, loop.counts.failed, loop.counts.dead) == (2, 3, 1)
    assert SECRET not in str(logs)


async def test_a_judge_that_hangs_is_cut_off() -> None:
    class Hangs:
        name = "hangs"

        async def judge(self, evidence: Evidence) -> Judgement | None:
            await asyncio.Event().wait()
            raise AssertionError

    claims = Memory(queued=[job()])
    async with working(claims, [Hangs()], job_timeout_s=0.02, max_attempts=1):
        await claims.until(lambda: bool(claims.dead))
    assert claims.dead[0][1] == "no verdict within 0.02 s"


async def test_a_judges_own_error_is_kept_as_the_reason() -> None:
    class Refuses:
        name = "refuses"

        async def judge(self, evidence: Evidence) -> Judgement | None:
            raise JudgeError("no votes")

    claims = Memory(queued=[job()])
    async with working(claims, [Refuses()], max_attempts=1):
        await claims.until(lambda: bool(claims.dead))
    assert claims.dead[0][1] == "JudgeError: no votes"


async def test_postgres_may_be_away_at_any_moment() -> None:
    claims = Memory(queued=[job(), job("And?")], away=2)
    async with working(claims) as loop:
        await claims.until(lambda: len(claims.finished) == 2)
        claims.away = 1
        claims.queued.append(job())
        await claims.until(lambda: len(claims.finished) == 3)
    assert (loop.counts.scored, loop.counts.unscored, loop.counts.failed) == (2, 1, 0)


async def test_one_row_that_cannot_be_stored_fails_alone() -> None:
    bad = job()
    claims = Memory(queued=[bad, job()], refuse=lambda one: one.turn_id == bad.turn_id)
    async with working(claims, max_attempts=1):
        await claims.until(lambda: len(claims.finished) == 1 and len(claims.dead) == 1)
    assert claims.dead[0][0].turn_id == bad.turn_id


async def test_a_lost_lease_is_counted_and_not_logged_as_scored() -> None:
    claims = Memory(queued=[job()], held=False)
    with structlog.testing.capture_logs() as logs:
        async with working(claims) as loop:
            await claims.until(lambda: bool(claims.finished))
    assert (loop.counts.lost, loop.counts.scored) == (1, 0)
    assert [entry for entry in logs if entry["event"] == "scored"] == []


class Gate:
    """A judge that waits until it is let through."""

    name = "gate"

    def __init__(self) -> None:
        self.open, self.entered = asyncio.Event(), asyncio.Event()

    async def judge(self, evidence: Evidence) -> Judgement | None:
        self.entered.set()
        await self.open.wait()
        return Judgement(judge=self.name, score=1.0)


async def test_leases_are_extended_while_a_job_is_worked_on() -> None:
    claims, gate = Memory(queued=[job()]), Gate()
    async with working(claims, [gate], lease_s=0.03):
        await claims.until(lambda: claims.extended >= 2)
        gate.open.set()
    assert len(claims.finished) == 1


async def test_stopping_finishes_what_is_in_hand_and_takes_nothing_new() -> None:
    claims, gate = Memory(queued=[job(), job()]), Gate()
    async with working(claims, [gate], concurrency=1):
        await gate.entered.wait()
        asyncio.get_running_loop().call_later(0.02, gate.open.set)
    assert (len(claims.finished), len(claims.queued)) == (1, 1)


async def test_stopping_does_not_wait_for_ever() -> None:
    claims, gate = Memory(queued=[job()]), Gate()
    async with working(claims, [gate], shutdown_grace_s=0.01) as loop:
        await gate.entered.wait()
    assert (claims.finished, loop.in_hand) == ([], 0)


async def test_a_scored_event_names_ids_and_version_but_no_text() -> None:
    claims = Memory(queued=[job("Thanks, that is what I needed.")])
    [one] = claims.queued
    with structlog.testing.capture_logs() as logs:
        async with working(claims):
            await claims.until(lambda: bool(claims.finished))
    [event] = [entry for entry in logs if entry["event"] == "scored"]
    assert {key: event[key] for key in ("session_id", "turn_id", "policy_version")} == {
        "session_id": str(one.session_id), "turn_id": str(one.turn_id), "policy_version": 3
    }  # fmt: skip
    assert (event["score"], event["rule"]) == (1.0, "thanks")
    assert SECRET not in str(logs)
    assert "needed" not in str(logs)


class Away:
    """A judge whose endpoint is down for the first `times` questions."""

    name = "llm:m"

    def __init__(self, times: int) -> None:
        self.times = times

    async def judge(self, evidence: Evidence) -> Judgement | None:
        if self.times > 0:
            self.times -= 1
            raise JudgeUnavailable("the judge's endpoint cannot be reached")
        return Judgement(judge=self.name, score=1.0)


async def test_a_job_waits_for_an_endpoint_however_long_it_is_away() -> None:
    claims = Memory(queued=[job()])
    async with working(claims, [Away(12)], max_attempts=2):
        await claims.until(lambda: bool(claims.finished))
    assert claims.dead == []
    # Doubled each time from half a second, and a minute at most.
    # Half a second at least, longer the longer it is away, and never counted as an attempt.
    assert all(0.5 <= retry_s <= 60 for _, _, retry_s in claims.failed)
    assert {one.attempts for one, _, _ in claims.failed} == {1}


def said(score: float, answer: str) -> JudgeJob:
    record = FeedbackRecord(id=new_id(), tenant_id=UUID(int=1), turn_id=new_id(), score=score)
    return replace(job(answer), feedback=(record,))


async def test_feedback_decides_and_shows_how_right_the_judges_are() -> None:
    # Without the feedback the rules find 1, -1, -1, and nothing in the last.
    jobs = [said(1.0, "Thanks!"), said(-0.5, "That's wrong."), said(1.0, "That's wrong."),
            said(-1.0, "And Vienna?")]  # fmt: skip
    claims = Memory(queued=[*jobs, job("Thanks!")])
    async with working(claims) as loop:
        await claims.until(lambda: len(claims.finished) == 5)
        async with asyncio.timeout(120):
            while loop.in_hand:
                await asyncio.sleep(0.01)
        report = loop.health.report()
    assert sorted(one.score or 0.0 for _, one in claims.finished) == [-1, -0.5, 1, 1, 1]
    assert (report["judgements"], report["feedback_checked"]) == (5, 3)
    assert report["feedback_agreement"] == 0.6667
    # Equal pairs 2/3; by chance (2/3 * 1/3) + (1/3 * 2/3) = 4/9; (6/9 - 4/9) / (5/9) = 0.4.
    assert report["feedback_kappa"] == 0.4


async def test_the_comparison_with_feedback_can_be_turned_off() -> None:
    claims = Memory(queued=[said(1.0, "Thanks!")])
    async with working(claims, check_against_feedback=False) as loop:
        await claims.until(lambda: bool(claims.finished))
    assert loop.health.report()["feedback_checked"] == 0


def test_what_was_away_for_long_is_asked_for_less_often() -> None:
    assert [patience(away) for away in (0, 1, 60, 120, 9000)] == [0, 0.5, 30, 60, 60]
