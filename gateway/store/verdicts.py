"""How a main-line turn ended. A turn that was trained on stays so; anything else may change."""

from __future__ import annotations

from uuid import UUID

import asyncpg

_PUT = """
INSERT INTO verdicts (turn_id, outcome, reason) VALUES ($1, $2, $3)
ON CONFLICT (turn_id) DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason,
    step_id = NULL, version = NULL, created_at = now()
WHERE verdicts.outcome <> 'trained'
"""

_TRAINED = """
INSERT INTO verdicts (turn_id, outcome, reason, step_id, version)
SELECT turn_id, 'trained', 'trained', $2, $3 FROM unnest($1::uuid[]) AS trained(turn_id)
ON CONFLICT (turn_id) DO UPDATE SET outcome = 'trained', reason = 'trained',
    step_id = excluded.step_id, version = excluded.version, created_at = now()
"""


async def put_verdict(
    connection: asyncpg.Connection, turn_id: UUID, outcome: str, reason: str
) -> None:
    await connection.execute(_PUT, turn_id, outcome, reason)


async def put_trained(
    connection: asyncpg.Connection, turn_ids: list[UUID], step_id: UUID, version: int
) -> None:
    await connection.execute(_TRAINED, turn_ids, step_id, version)
