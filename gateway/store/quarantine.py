"""Samples that a version was trained on which was then rolled back: kept apart, and never used."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

QUARANTINED = "quarantined"

_SAMPLES = """
UPDATE samples s SET state = 'dropped', reason = $3
FROM policies p
WHERE p.lineage_id = $1 AND p.version = ANY($2::int8[]) AND p.step_id = s.step_id
  AND s.lineage_id = $1 AND s.state = 'trained'
RETURNING s.turn_id
"""

# What another judgement made of the same turns.
_OTHERS = """
UPDATE samples SET state = 'dropped', reason = $3
WHERE lineage_id = $1 AND turn_id = ANY($2::uuid[]) AND state IN ('ready', 'leased')
"""

# Step and version stay: they say what it was that was undone.
_VERDICTS = """
UPDATE verdicts v SET outcome = 'dropped', reason = $3, created_at = now()
FROM policies p
WHERE p.lineage_id = $1 AND p.version = ANY($2::int8[]) AND p.step_id = v.step_id
"""


async def quarantine(
    connection: asyncpg.Connection, lineage_id: UUID, versions: Sequence[int]
) -> int:
    """Set the samples of the steps that made these versions aside, with a verdict; how many."""
    rows = await connection.fetch(_SAMPLES, lineage_id, list(versions), QUARANTINED)
    turns = [row["turn_id"] for row in rows]
    await connection.execute(_OTHERS, lineage_id, turns, QUARANTINED)
    await connection.execute(_VERDICTS, lineage_id, list(versions), QUARANTINED)
    return len(rows)
