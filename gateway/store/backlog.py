"""The line of turns that a lineage has not trained on yet, cut to what it still can."""

from __future__ import annotations

from uuid import UUID

import asyncpg

REASON = "backlog"

# The newest stay. What a judge has in hand stays too: it is about to become a sample.
_LINE = """
SELECT line.turn_id FROM (
    SELECT s.turn_id, s.arrived_at FROM samples s WHERE s.lineage_id = $1 AND s.state = 'ready'
    UNION ALL
    SELECT j.turn_id, coalesce(n.arrived_at, j.created_at)
    FROM judgements j JOIN turns t ON t.id = j.turn_id
    LEFT JOIN next_states n ON n.turn_id = j.turn_id
    WHERE j.state = 'queued' AND t.lineage_id = $1 AND t.kind = 'main' AND t.trainable
      AND NOT EXISTS (SELECT FROM samples s WHERE s.turn_id = j.turn_id)
      AND NOT EXISTS (SELECT FROM verdicts v WHERE v.turn_id = j.turn_id)
) AS line
ORDER BY line.arrived_at DESC, line.turn_id DESC
"""

_DROP = """
UPDATE samples s SET state = 'dropped', reason = $3,
    version_lag = l.live_version - s.version_min
FROM lineages l
WHERE l.id = s.lineage_id AND s.lineage_id = $1 AND s.state = 'ready'
  AND s.turn_id = ANY($2::uuid[])
RETURNING s.turn_id
"""

_SKIP = """
UPDATE judgements SET state = 'skipped', reason = $2, done_at = now()
WHERE state = 'queued' AND turn_id = ANY($1::uuid[])
RETURNING turn_id
"""

_VERDICTS = """
INSERT INTO verdicts (turn_id, outcome, reason)
SELECT turn_id, 'dropped', $2 FROM unnest($1::uuid[]) AS gone(turn_id)
ON CONFLICT (turn_id) DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason,
    step_id = NULL, version = NULL, created_at = now()
WHERE verdicts.outcome <> 'trained'
"""


async def cut_backlog(
    connection: asyncpg.Connection, lineage_id: UUID, keep: int, beyond: int
) -> int:
    """Where the line is longer than `beyond`, drop all but the newest `keep`; how many went.

    The line are turns with a next state and no verdict: samples that are ready, and queued jobs.
    Those dropped have the verdict `backlog`.
    """
    rows = await connection.fetch(_LINE, lineage_id)
    if len(rows) <= beyond:
        return 0
    turn_ids = [row["turn_id"] for row in rows[keep:]]
    dropped = await connection.fetch(_DROP, lineage_id, turn_ids, REASON)
    skipped = await connection.fetch(_SKIP, turn_ids, REASON)
    gone = {row["turn_id"] for row in (*dropped, *skipped)}
    await connection.execute(_VERDICTS, sorted(gone), REASON)
    return len(gone)
