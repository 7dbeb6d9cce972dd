"""Judging jobs: claimed by leases, finished once, each turn ending in a sample or a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from uuid import UUID

import asyncpg

from gateway.records import (
    JudgeJob,
    Judgement,
    Teaching,
    delay,
)
from gateway.store.cleared import without_cleared
from gateway.store.conclusion import TAUGHT, conclude
from gateway.store.database import Database
from gateway.store.jobs import load_jobs
from gateway.store.packing import scrub
from gateway.store.stale import skip_stale
from gateway.store.teachings import put_teaching
from gateway.store.verdicts import put_verdict

_MAX_ATTEMPTS = 5

# A worker that dies on the same job again and again does not hold up the others for ever.
_BURY = """
UPDATE judgements SET state = 'dead', reason = 'lease_expired', done_at = now(),
    lease_owner = NULL, lease_until = NULL
WHERE state = 'leased' AND lease_until < now() AND attempts >= $1
RETURNING turn_id, round
"""

# Locked in one order, so that two rounds that end at once see one another.
_ROUNDS = "SELECT round, state FROM judgements WHERE turn_id = $1 ORDER BY round FOR UPDATE"

CLAIM = """
WITH picked AS (
    SELECT j.turn_id, j.round FROM judgements j
    WHERE j.state IN ('queued', 'leased') AND j.run_after <= now()
      AND (j.state = 'queued' OR j.lease_until < now())
      AND (cardinality($4::uuid[]) = 0 OR j.tenant_id <> ALL($4))
      AND EXISTS (SELECT FROM turns t WHERE t.id = j.turn_id)
    ORDER BY j.run_after LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE judgements j SET state = 'leased', attempts = j.attempts + 1, lease_owner = $1,
    lease_until = now() + make_interval(secs => $3)
FROM picked WHERE j.turn_id = picked.turn_id AND j.round = picked.round
RETURNING j.turn_id, j.round, j.attempts, j.run_after
"""

_HELD = "turn_id = $1 AND round = $2 AND state = 'leased' AND lease_owner = $3 AND attempts = $4"

_FINISH = f"""
UPDATE judgements SET state = 'done', done_at = now(), lease_owner = NULL, lease_until = NULL,
    judge = $5, rule = $6, score = $7, confidence = $8, reason = $9, votes = $10, hint = $11,
    usage = $12
WHERE {_HELD}
"""  # noqa: S608

_RETRY = f"""
UPDATE judgements SET state = 'queued', run_after = now() + make_interval(secs => $6),
    lease_owner = NULL, lease_until = NULL, reason = $5, attempts = attempts - $7::int2
WHERE {_HELD}
"""  # noqa: S608

_SET_ASIDE = f"""
UPDATE judgements SET state = 'dead', done_at = now(), lease_owner = NULL, lease_until = NULL,
    reason = $5
WHERE {_HELD}
"""  # noqa: S608

_EXTEND = """
UPDATE judgements j SET lease_until = now() + make_interval(secs => $5)
FROM unnest($1::uuid[], $2::int2[], $3::int2[]) AS held(turn_id, round, attempts)
WHERE j.turn_id = held.turn_id AND j.round = held.round AND j.attempts = held.attempts
  AND j.state = 'leased' AND j.lease_owner = $4
"""

_REJUDGE = """
INSERT INTO judgements (turn_id, round, tenant_id)
SELECT t.id, coalesce((SELECT max(j.round) FROM judgements j WHERE j.turn_id = t.id), 0) + 1,
    t.tenant_id
FROM turns t
WHERE t.id = $1 AND t.kind <> 'side' AND ($2::uuid IS NULL OR t.tenant_id = $2)
  AND NOT EXISTS (SELECT FROM judgements j WHERE j.turn_id = t.id AND j.state = 'queued')
ON CONFLICT DO NOTHING
RETURNING round
"""


class JudgeClaims:
    """The queue of judging jobs. Every method raises StoreUnavailable where Postgres is away.

    A lease is held by a worker for one attempt; whoever no longer holds it changes nothing. Turns
    that are more than `max_lag` versions behind are not judged any more; None judges all: `skipped`
    is told how many, by how long their users took to answer. Those of tenants that `paused` names
    at the time wait.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_attempts: int = _MAX_ATTEMPTS,
        max_lag: int | None = None,
        paused: Callable[[], Collection[UUID]] = tuple,
        skipped: Callable[[Counter[str]], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._max_attempts = max_attempts
        self._max_lag = max_lag
        self._paused = paused
        self._skipped = skipped

    async def claim(self, worker_id: UUID, limit: int, lease_s: float) -> list[JudgeJob]:
        """Lease at most `limit` jobs, the oldest fresh ones first.

        Those of dead workers are taken again. Stale ones are skipped, with a verdict.
        """
        async with self._database.transaction() as connection:
            for row in await connection.fetch(_BURY, self._max_attempts):
                await _give_up(connection, row["turn_id"], row["round"])
            claimed = await self._fresh(connection, worker_id, limit, lease_s)
            kept = await without_cleared(connection, claimed)
            return await load_jobs(connection, kept)

    async def _fresh(
        self, connection: asyncpg.Connection, worker_id: UUID, limit: int, lease_s: float
    ) -> list[asyncpg.Record]:
        """Leases; what is stale among them, and all that is stale behind them, is skipped."""
        while claimed := await connection.fetch(
            CLAIM, worker_id, limit, lease_s, list(self._paused())
        ):
            if self._max_lag is None:
                return claimed
            leased = [row["turn_id"] for row in claimed]
            skipped = await skip_stale(connection, self._max_lag, worker_id, leased)
            if skipped:
                self._skipped(Counter(map(delay, skipped.values())))
            if fresh := [row for row in claimed if row["turn_id"] not in skipped]:
                return fresh
        return []

    async def finish(
        self,
        worker_id: UUID,
        job: JudgeJob,
        judgement: Judgement,
        sample_method: str | None,
        teaching: Teaching | None = None,
    ) -> bool:
        """Store a result; the turn becomes a sample of `sample_method` or gets a verdict.

        One transaction, the teaching included. False, and nothing stored, where the lease is not
        this worker's. Where a later round has ended before it, that one's result stands.
        """
        lineage_id: UUID | None = None
        async with self._database.acquire() as connection:
            async with connection.transaction():
                overtaken = await _overtaken(connection, job.turn_id, job.round)
                done = await connection.execute(
                    _FINISH,
                    *_held(worker_id, job),
                    judgement.judge,
                    judgement.rule,
                    judgement.score,
                    judgement.confidence,
                    scrub(judgement.reason),
                    scrub(list(judgement.votes)),
                    scrub(judgement.hint),
                    None if judgement.usage is None else scrub(dict(judgement.usage)),
                )
                if done != "UPDATE 1":
                    return False
                if teaching is not None:
                    await put_teaching(connection, job.turn_id, job.round, job.tenant_id, teaching)
                taught = teaching is not None and sample_method in TAUGHT
                if not overtaken:
                    lineage_id = await conclude(
                        connection, job, judgement, sample_method, taught=taught
                    )
            if lineage_id is not None:
                await connection.execute(
                    "SELECT pg_notify('nextstate_samples', $1)", lineage_id.hex
                )
        return True

    async def fail(
        self,
        worker_id: UUID,
        job: JudgeJob,
        error: str,
        retry_after_s: float | None,
        *,
        counted: bool = True,
    ) -> bool:
        """Put a job back for later, or set it aside (None) with a verdict for its turn.

        An attempt that is not `counted` is as if it had not been made. False where the lease is
        not this worker's.
        """
        held = _held(worker_id, job)
        async with self._database.transaction() as connection:
            if retry_after_s is not None:
                done = await connection.execute(
                    _RETRY, *held, scrub(error), retry_after_s, int(not counted)
                )
                return done == "UPDATE 1"
            done = await connection.execute(_SET_ASIDE, *held, scrub(error))
            if done != "UPDATE 1":
                return False
            await _give_up(connection, job.turn_id, job.round)
        return True

    async def extend(self, worker_id: UUID, jobs: Sequence[JudgeJob], lease_s: float) -> int:
        """Hold jobs for another `lease_s`; how many of them are still this worker's."""
        done = await self._database.execute(
            _EXTEND,
            [job.turn_id for job in jobs],
            [job.round for job in jobs],
            [job.attempts for job in jobs],
            worker_id,
            lease_s,
        )
        return int(done.rpartition(" ")[2])

    async def rejudge(self, turn_id: UUID, tenant_id: UUID | None = None) -> bool:
        """Queue another round; False where one waits already or the turn is not to be judged."""
        queued = await self._database.fetchval(_REJUDGE, turn_id, tenant_id)
        if queued is None:
            return False
        await self._database.execute("SELECT pg_notify('nextstate_judge', '')")
        return True


async def _overtaken(connection: asyncpg.Connection, turn_id: UUID, round_: int) -> bool:
    """Whether a later round of the turn is done: one with more feedback was quicker."""
    rounds = await connection.fetch(_ROUNDS, turn_id)
    return any(row["round"] > round_ and row["state"] == "done" for row in rounds)


async def _give_up(connection: asyncpg.Connection, turn_id: UUID, round_: int) -> None:
    """A verdict for a turn whose round has failed, unless a later one has not."""
    if not await _overtaken(connection, turn_id, round_):
        await put_verdict(connection, turn_id, "unscored", "judging_failed")


def _held(worker_id: UUID, job: JudgeJob) -> tuple[UUID, int, UUID, int]:
    return job.turn_id, job.round, worker_id, job.attempts
