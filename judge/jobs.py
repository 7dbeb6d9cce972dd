"""Judging jobs taken from Postgres and brought to an end, many at once.

    claim ──▶ judge (bounded in time) ──▶ finish      the score, and a sample where one is due
                     │
                     └─ crashed, too slow ──▶ fail    again later, or set aside with the reason

A job is leased while it is worked on. A worker that dies lets its leases run out and another one
takes the jobs; what a worker does with a job that it no longer holds has no effect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from uuid import UUID

import asyncpg

from gateway.errors import JudgeUnavailable, StoreUnavailable
from gateway.records import JudgeJob, Judgement, Teaching
from gateway.telemetry import get_logger, request_context
from gateway.telemetry.tracing import Traces
from judge.audit import Auditor
from judge.claims import Claims, Counts
from judge.config import JudgeConfig
from judge.evaluate import evaluate
from judge.health import Health
from judge.patience import LONGEST_WAIT_S, patience, patiently
from judge.rules.feedback import FEEDBACK
from judge.spans import Times, judged
from judge.taught import Teach, taught, wanted
from judge.usage import Price, usage_of
from judge.verdicts import Evidence, Judge

log = get_logger(__name__)

_ERROR_LIMIT = 500

#: Judgements that need nothing from outside, so that they do not say that it is back.
_OWN = frozenset({"rules", "none"})


#: Adds a hint to a judgement where one is due.
Advise = Callable[[Evidence, Judgement], Awaitable[Judgement]]


class JobLoop:
    """Works until told to stop. `wake` may be called from any callback of the same event loop."""

    def __init__(
        self,
        claims: Claims,
        judges: Sequence[Judge],
        config: JudgeConfig,
        worker_id: UUID,
        *,
        advise: Advise | None = None,
        teach: Teach | None = None,
        price: Price | None = None,
        health: Health | None = None,
        auditor: Auditor | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.counts = Counts()
        self.health = health or Health()
        self._claims = claims
        self._judges = tuple(judges)
        self._config = config
        self._worker_id = worker_id
        self._advise = advise
        self._teach = teach
        self._price = price
        self._auditor = auditor
        self._traces = traces
        self._away_since: float | None = None
        self._tasks: dict[asyncio.Task[None], JudgeJob] = {}
        self._woken = asyncio.Event()
        self._more = False

    @property
    def in_hand(self) -> int:
        return len(self._tasks)

    def wake(self) -> None:
        """Look for jobs now rather than at the next poll."""
        self._woken.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Claim and judge until `stop` is set, then finish what is in hand within the grace."""
        stopper = asyncio.create_task(self._wake_on(stop))
        keeper = asyncio.create_task(self._keep_leases())
        try:
            while not stop.is_set():
                await self._claim(stop)
                await self._pause(self._config.poll_s)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._config.shutdown_grace_s)
        finally:
            unfinished = dict(self._tasks)
            left = [stopper, keeper, *unfinished]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            if stop.is_set():
                await self._put_back([job for task, job in unfinished.items() if task.cancelled()])

    async def _put_back(self, jobs: Sequence[JudgeJob]) -> None:
        """Free at once for other workers what there was no time for; else the leases run out."""
        for job in jobs:
            try:
                await self._claims.fail(self._worker_id, job, "stopped", 0.0, counted=False)
            except (StoreUnavailable, asyncpg.PostgresError) as error:
                log.warning("jobs_not_put_back", jobs=len(jobs), error=type(error).__name__)
                return

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.wake()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
        finally:
            self._woken.clear()

    async def _claim(self, stop: asyncio.Event) -> None:
        """Take as many jobs as there is room for."""
        free = self._config.concurrency - len(self._tasks)
        if free <= 0:
            self._more = True
            return
        jobs = await patiently(
            lambda: self._claims.claim(self._worker_id, free, self._config.lease_s), stop
        )
        for job in jobs or ():
            self.counts.claimed += 1
            task = asyncio.create_task(self._work(job))
            self._tasks[task] = job
            task.add_done_callback(self._done)
        # A full hand means that there may be more; the next free place fetches it.
        self._more = len(jobs or ()) == free

    def _done(self, task: asyncio.Task[None]) -> None:
        job = self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("job_lost", turn_id=str(job.turn_id), error=repr(error)[:_ERROR_LIMIT])
        if self._more:
            self.wake()

    async def _work(self, job: JudgeJob) -> None:
        """Bring one job to its end. Whatever goes wrong in it stays in it."""
        with request_context(
            tenant_id=str(job.tenant_id),
            session_id=str(job.session_id),
            turn_id=str(job.turn_id),
            policy_version=job.version_min,
        ):
            await self._judge(job)

    async def _judge(self, job: JudgeJob) -> None:
        evidence = Evidence.of(job)
        began, started = time.time(), time.perf_counter()
        try:
            async with asyncio.timeout(self._config.attempt_timeout_s):
                judgement = await evaluate(self._judges, evidence)
                if self._advise is not None:
                    judgement = await self._advise(evidence, judgement)
        except TimeoutError:
            await self._fail(job, f"no verdict within {self._config.attempt_timeout_s:g} s")
        except JudgeUnavailable as error:
            reason = f"{type(error).__name__}: {error}"[:_ERROR_LIMIT]
            await self._fail(job, reason, waits_s=error.retry_after_s)
        except Exception as error:  # noqa: BLE001 - a rule or a plug-in may raise anything
            await self._fail(job, f"{type(error).__name__}: {error}"[:_ERROR_LIMIT])
        else:
            judged_at, teaching = time.time(), None
            if self._teach is not None and wanted(job, judgement):
                teaching, judgement = await taught(self._teach, job, judgement)
                self.health.taught(done=teaching is not None)
            judgement = replace(judgement, usage=usage_of(judgement, self._price) or None)
            if judgement.judge not in _OWN:
                self._away_since = None
            self.health.judged(judgement, time.perf_counter() - started)
            stored = await self._finish(job, judgement, teaching)
            if stored and self._traces is not None:
                times = Times(began=began, judged=judged_at, stored=time.time())
                judged(self._traces, job, judgement, teaching, times)
            await self._check(evidence, judgement)
            await self._audit(job, evidence, judgement)

    async def _audit(self, job: JudgeJob, evidence: Evidence, judgement: Judgement) -> None:
        """Let the independent judge look at its share of what was scored."""
        if self._auditor is None or judgement.score is None:
            return
        found = await self._auditor.audit(job, evidence, judgement)
        if found is not None:
            self.health.audited(judgement.score, found)

    async def _check(self, evidence: Evidence, judgement: Judgement) -> None:
        """Compare somebody's own word with what would have been found without it."""
        if not (
            self._config.check_against_feedback
            and judgement.rule == FEEDBACK.name
            and judgement.score is not None
        ):
            return
        try:
            async with asyncio.timeout(self._config.attempt_timeout_s):
                blind = await evaluate(self._judges, replace(evidence, feedback=()))
        except Exception as error:  # noqa: BLE001 - the job is done; only its check is not
            log.warning("feedback_not_compared", error=type(error).__name__)
            return
        if blind.score is not None:
            self.health.checked(judgement.score, blind.score)

    async def _finish(self, job: JudgeJob, judgement: Judgement, teaching: Teaching | None) -> bool:
        """Whether it is stored."""
        method = self._config.sample_method
        try:
            held = await patiently(
                lambda: self._claims.finish(
                    self._worker_id, job, judgement, sample_method=method, teaching=teaching
                )
            )
        except Exception as error:  # noqa: BLE001 - one bad row fails alone
            await self._fail(job, f"{type(error).__name__}: {error}"[:_ERROR_LIMIT])
            return False
        if not held:
            self.counts.lost += 1
            return False
        if judgement.score is None:
            self.counts.unscored += 1
        else:
            self.counts.scored += 1
        about = {"session_id": str(job.session_id), "turn_id": str(job.turn_id)}
        log.info(
            "scored",
            **about,
            policy_version=job.version_min,
            score=judgement.score,
            rule=judgement.rule,
            judge=judgement.judge,
        )
        if judgement.hint is not None:
            log.info("hinted", **about, by=judgement.judge, taught=teaching is not None)
        return True

    async def _fail(self, job: JudgeJob, error: str, *, waits_s: float | None = None) -> None:
        """Try again later, each time later; after the last attempt the job is set aside.

        A job that waits (at least `waits_s`) for what is away is never set aside for it, and the
        attempt does not count.
        """
        counted = waits_s is None
        retry_s: float | None = self._config.retry_after_s * 2.0 ** min(job.attempts - 1, 16)
        if waits_s is not None:
            now = time.monotonic()
            self._away_since = self._away_since or now
            patience_s = patience(now - self._away_since)
            retry_s = min(max(self._config.retry_after_s, waits_s, patience_s), LONGEST_WAIT_S)
        elif job.attempts >= self._config.max_attempts:
            retry_s = None
        held = await patiently(
            lambda: self._claims.fail(self._worker_id, job, error, retry_s, counted=counted)
        )
        if not held:
            self.counts.lost += 1
            return
        self.counts.failed += 1
        self.counts.dead += retry_s is None
        # The type of an error is safe to log; its words may hold what people wrote.
        log.warning(
            "judging_failed",
            turn_id=str(job.turn_id),
            error=error.partition(":")[0],
            attempts=job.attempts,
            again_in_s=retry_s,
        )

    async def _keep_leases(self) -> None:
        """Extend the leases of the jobs in hand, well before they run out."""
        while True:
            await asyncio.sleep(self._config.lease_s / 3)
            if jobs := tuple(self._tasks.values()):
                try:
                    await self._claims.extend(self._worker_id, jobs, self._config.lease_s)
                except (StoreUnavailable, asyncpg.PostgresError) as error:
                    log.warning("leases_not_extended", jobs=len(jobs), error=type(error).__name__)
