"""Judging jobs: claimed by leases, finished once, each turn ending in a sample or a verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from gateway.records import FeedbackRecord, FinishReason, JudgeJob, Judgement, TurnKind, new_id
from gateway.store.database import Database, seconds
from gateway.store.packing import scrub
from gateway.store.verdicts import put_verdict

_MAX_ATTEMPTS = 5

# A worker that dies on the same job again and again does not hold up the others for ever.
_BURY = """
UPDATE judgements SET state = 'dead', reason = 'lease_expired', done_at = now(),
    lease_owner = NULL, lease_until = NULL
WHERE state = 'leased' AND lease_until < now() AND attempts >= $1
RETURNING turn_id
"""

CLAIM = """
WITH picked AS (
    SELECT j.turn_id, j.round FROM judgements j
    WHERE j.state IN ('queued', 'leased') AND j.run_after <= now()
      AND (j.state = 'queued' OR j.lease_until < now())
      AND EXISTS (SELECT FROM turns t WHERE t.id = j.turn_id)
    ORDER BY j.run_after LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE judgements j SET state = 'leased', attempts = j.attempts + 1, lease_owner = $1,
    lease_until = now() + make_interval(secs => $3)
FROM picked WHERE j.turn_id = picked.turn_id AND j.round = picked.round
RETURNING j.turn_id, j.round, j.attempts, j.run_after
"""

_JOBS = f"""
SELECT t.id AS turn_id, t.tenant_id, t.session_id, t.lineage_id, t.kind, t.messages, t.reply,
    t.finish_reason, t.trainable, t.untrainable_reason, t.version_min, n.messages AS next_state,
    {seconds("n.arrived_at")} AS arrived_at
FROM turns t LEFT JOIN next_states n ON n.turn_id = t.id
WHERE t.id = ANY($1::uuid[])
"""  # noqa: S608 - made of constants

_FEEDBACK = """
SELECT f.id, f.tenant_id, f.turn_id, f.score, f.text, f.source, f.idempotency_key
FROM feedback f WHERE f.turn_id = ANY($1::uuid[]) ORDER BY f.created_at, f.id
"""

_HELD = "turn_id = $1 AND round = $2 AND state = 'leased' AND lease_owner = $3 AND attempts = $4"

_FINISH = f"""
UPDATE judgements SET state = 'done', done_at = now(), lease_owner = NULL, lease_until = NULL,
    judge = $5, rule = $6, score = $7, confidence = $8, reason = $9, votes = $10, hint = $11
WHERE {_HELD}
"""  # noqa: S608

_RETRY = f"""
UPDATE judgements SET state = 'queued', run_after = now() + make_interval(secs => $6),
    lease_owner = NULL, lease_until = NULL, reason = $5
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

_TURN = """
SELECT t.kind, t.trainable, t.untrainable_reason, t.session_id, t.lineage_id, t.version_min,
    coalesce(l.trains, false) AS trains, coalesce(n.arrived_at, j.created_at) AS arrived_at
FROM judgements j JOIN turns t ON t.id = j.turn_id
LEFT JOIN lineages l ON l.id = t.lineage_id LEFT JOIN next_states n ON n.turn_id = t.id
WHERE j.turn_id = $1 AND j.round = $2
"""

# Judged again before it was trained on: the later score counts. Once leased, it is too late.
_ADD_SAMPLE = """
INSERT INTO samples
    (id, turn_id, session_id, lineage_id, method, score, version_min, arrived_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT ON CONSTRAINT samples_once DO UPDATE
SET score = excluded.score, state = 'ready', reason = NULL
WHERE samples.state = 'ready' OR (samples.state = 'dropped' AND samples.reason = 'rejudged')
RETURNING id
"""

_WITHDRAW = """
UPDATE samples SET state = 'dropped', reason = 'rejudged' WHERE turn_id = $1 AND state = 'ready'
"""

_CLEAR_VERDICT = """
DELETE FROM verdicts WHERE turn_id = $1 AND (outcome = 'unscored' OR reason = 'rejudged')
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

    A lease is held by a worker for one attempt; whoever no longer holds it changes nothing.
    """

    def __init__(self, database: Database, *, max_attempts: int = _MAX_ATTEMPTS) -> None:
        self._database = database
        self._max_attempts = max_attempts

    async def claim(self, worker_id: UUID, limit: int, lease_s: float) -> list[JudgeJob]:
        """Lease at most `limit` jobs, the oldest first; those of dead workers are taken again."""
        async with self._database.transaction() as connection:
            for row in await connection.fetch(_BURY, self._max_attempts):
                await put_verdict(connection, row["turn_id"], "unscored", "judging_failed")
            claimed = await connection.fetch(CLAIM, worker_id, limit, lease_s)
            if not claimed:
                return []
            turn_ids = [row["turn_id"] for row in claimed]
            turns = {row["turn_id"]: row for row in await connection.fetch(_JOBS, turn_ids)}
            said: defaultdict[UUID, list[FeedbackRecord]] = defaultdict(list)
            for row in await connection.fetch(_FEEDBACK, turn_ids):
                said[row["turn_id"]].append(FeedbackRecord(**dict(row)))
        return [
            _job(row, turns[row["turn_id"]], said[row["turn_id"]])
            for row in sorted(claimed, key=lambda row: row["run_after"])
        ]

    async def finish(
        self, worker_id: UUID, job: JudgeJob, judgement: Judgement, sample_method: str | None
    ) -> bool:
        """Store a result; the turn becomes a sample of `sample_method` or gets a verdict.

        One transaction. False, and nothing stored, where the lease is not this worker's.
        """
        async with self._database.acquire() as connection:
            async with connection.transaction():
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
                )
                if done != "UPDATE 1":
                    return False
                lineage_id = await _conclude(connection, job, judgement, sample_method)
            if lineage_id is not None:
                await connection.execute(
                    "SELECT pg_notify('nextstate_samples', $1)", lineage_id.hex
                )
        return True

    async def fail(
        self, worker_id: UUID, job: JudgeJob, error: str, retry_after_s: float | None
    ) -> bool:
        """Put a job back for later, or set it aside (None) with a verdict for its turn.

        False where the lease is not this worker's.
        """
        held = _held(worker_id, job)
        async with self._database.transaction() as connection:
            if retry_after_s is not None:
                done = await connection.execute(_RETRY, *held, scrub(error), retry_after_s)
                return done == "UPDATE 1"
            done = await connection.execute(_SET_ASIDE, *held, scrub(error))
            if done != "UPDATE 1":
                return False
            await put_verdict(connection, job.turn_id, "unscored", "judging_failed")
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


async def _conclude(
    connection: asyncpg.Connection, job: JudgeJob, judgement: Judgement, method: str | None
) -> UUID | None:
    """A sample, whose lineage is returned, or a verdict; neither for a turn that is held."""
    turn = await connection.fetchrow(_TURN, job.turn_id, job.round)
    assert turn is not None
    if turn["kind"] != TurnKind.MAIN:
        return None
    if (verdict := _verdict(turn, judgement, method)) is not None:
        await connection.execute(_WITHDRAW, job.turn_id)
        await put_verdict(connection, job.turn_id, *verdict)
        return None
    lineage_id: UUID = turn["lineage_id"]
    added = await connection.fetchval(
        _ADD_SAMPLE,
        new_id(),
        job.turn_id,
        turn["session_id"],
        lineage_id,
        method,
        judgement.score,
        turn["version_min"],
        turn["arrived_at"],
    )
    if added is None:
        return None
    await connection.execute(_CLEAR_VERDICT, job.turn_id)
    return lineage_id


def _verdict(
    turn: asyncpg.Record, judgement: Judgement, method: str | None
) -> tuple[str, str] | None:
    """Why a judged turn is not trained on: outcome and reason; None where it is."""
    if not turn["trainable"]:
        return "untrainable", turn["untrainable_reason"]
    if judgement.score is None:
        return "unscored", judgement.rule or "no_rule_settled"
    if judgement.score == 0:
        return "unscored", "score_zero"
    if not turn["trains"]:
        return "dropped", "lineage_does_not_train"
    return ("dropped", "no_method") if method is None else None


def _held(worker_id: UUID, job: JudgeJob) -> tuple[UUID, int, UUID, int]:
    return job.turn_id, job.round, worker_id, job.attempts


def _job(lease: asyncpg.Record, turn: asyncpg.Record, said: list[FeedbackRecord]) -> JudgeJob:
    values: dict[str, Any] = dict(turn)
    arrived_at = values.pop("arrived_at")
    return JudgeJob(
        round=lease["round"],
        attempts=lease["attempts"],
        kind=TurnKind(values.pop("kind")),
        finish_reason=FinishReason(values.pop("finish_reason")),
        request=tuple(values.pop("messages")),
        next_state=tuple(values.pop("next_state") or ()),
        feedback=tuple(said),
        arrived_at=lease["run_after"].timestamp() if arrived_at is None else arrived_at,
        **values,
    )
