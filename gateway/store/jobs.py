"""Claimed judging jobs with all that a judge may see of their turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from gateway.records import FeedbackRecord, FinishReason, JudgeJob, TurnKind
from gateway.store.database import seconds

_JOBS = f"""
SELECT t.id AS turn_id, t.tenant_id, t.session_id, t.lineage_id, t.kind, t.messages, t.reply,
    t.finish_reason, t.trainable, t.untrainable_reason, t.version_min, n.messages AS next_state,
    {seconds("n.arrived_at")} AS arrived_at, coalesce(n.how, 'continued') AS how
FROM turns t LEFT JOIN next_states n ON n.turn_id = t.id
WHERE t.id = ANY($1::uuid[])
"""  # noqa: S608

_FEEDBACK = """
SELECT f.id, f.tenant_id, f.turn_id, f.score, f.text, f.source, f.idempotency_key, f.session_id,
    f.discount
FROM feedback f WHERE f.turn_id = ANY($1::uuid[]) ORDER BY f.created_at, f.id
"""


async def load_jobs(
    connection: asyncpg.Connection, claimed: Sequence[asyncpg.Record]
) -> list[JudgeJob]:
    """The jobs of leases (turn_id, round, attempts, run_after), the oldest first."""
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
