"""What becomes of a turn once it is judged: a sample, or a verdict that says why not."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from gateway.records import JudgeJob, Judgement, TurnKind, new_id
from gateway.store.verdicts import put_verdict

#: Methods that learn from a teacher even where the score is 0 or missing.
TAUGHT = frozenset({"opd", "combined"})

_TURN = """
SELECT t.kind, t.trainable, t.untrainable_reason, t.session_id, t.lineage_id, t.version_min,
    t.redacted, t.tokens_cleared, t.group_id,
    coalesce(l.trains, false) AS trains, coalesce(n.arrived_at, j.created_at) AS arrived_at
FROM judgements j JOIN turns t ON t.id = j.turn_id
LEFT JOIN lineages l ON l.id = t.lineage_id LEFT JOIN next_states n ON n.turn_id = t.id
WHERE j.turn_id = $1 AND j.round = $2
"""

# Judged again before it was trained on: the later score counts. Once leased, it is too late.
_ADD_SAMPLE = """
INSERT INTO samples
    (id, turn_id, session_id, lineage_id, method, score, version_min, arrived_at, group_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
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


async def conclude(
    connection: asyncpg.Connection,
    job: JudgeJob,
    judgement: Judgement,
    method: str | None,
    *,
    taught: bool,
) -> UUID | None:
    """A sample, whose lineage is returned, or a verdict; neither for a turn that is held."""
    turn = await connection.fetchrow(_TURN, job.turn_id, job.round)
    assert turn is not None
    if turn["kind"] != TurnKind.MAIN:
        return None
    if (verdict := _verdict(turn, judgement, method, taught=taught)) is not None:
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
        judgement.score or 0.0,
        turn["version_min"],
        turn["arrived_at"],
        turn["group_id"],
    )
    if added is None:
        return None
    await connection.execute(_CLEAR_VERDICT, job.turn_id)
    return lineage_id


def _verdict(
    turn: asyncpg.Record, judgement: Judgement, method: str | None, *, taught: bool
) -> tuple[str, str] | None:
    """Why a judged turn is not trained on: outcome and reason; None where it is."""
    if not turn["trainable"]:
        return "untrainable", turn["untrainable_reason"]
    if turn["redacted"]:
        return "untrainable", "redacted"
    if turn["tokens_cleared"]:
        return "dropped", "retention"
    if judgement.score is None and not taught:
        return "unscored", judgement.rule or "no_rule_settled"
    if judgement.score == 0 and not taught:
        return "unscored", "score_zero"
    if not turn["trains"]:
        return "dropped", "lineage_does_not_train"
    return ("dropped", "no_method") if method is None else None
