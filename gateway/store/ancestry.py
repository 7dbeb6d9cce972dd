"""Samples of versions that the live one does not come from: they were rolled back.

Numbers do not tell: version 8 may come from 6, and 7 may have been rolled back.
"""

from __future__ import annotations

from uuid import UUID

import asyncpg

#: The reason of samples, and of their turns' verdicts.
ROLLED_BACK = "rolled_back"

_DROP = """
WITH RECURSIVE line AS (
    SELECT p.version, p.parent_version FROM policies p JOIN lineages l
        ON l.id = p.lineage_id AND l.live_version = p.version
    WHERE l.id = $1
    UNION ALL
    SELECT p.version, p.parent_version FROM policies p JOIN line c
        ON p.lineage_id = $1 AND p.version = c.parent_version
    WHERE c.version > (
        SELECT min(s.version_min) FROM samples s
        WHERE s.lineage_id = $1 AND s.state IN ('ready', 'leased')
    )
)
UPDATE samples s SET state = 'dropped', reason = $2
FROM turns t
WHERE s.lineage_id = $1 AND s.state IN ('ready', 'leased') AND t.id = s.turn_id
  AND EXISTS (
    SELECT FROM (VALUES (t.version_min), (t.version_max)) AS v(version)
    WHERE v.version NOT IN (SELECT version FROM line)
      AND v.version IS DISTINCT FROM (SELECT canary_version FROM lineages WHERE id = $1)
  )
RETURNING s.turn_id
"""

_VERDICTS = """
INSERT INTO verdicts (turn_id, outcome, reason)
SELECT turn_id, 'dropped', $2 FROM unnest($1::uuid[]) AS gone(turn_id)
ON CONFLICT (turn_id) DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason,
    step_id = NULL, version = NULL, created_at = now()
WHERE verdicts.outcome <> 'trained'
"""


async def drop_strays(connection: asyncpg.Connection, lineage_id: UUID) -> int:
    """Drop what waits to be trained on and comes from no ancestor of what is live; how many.

    Those of an open canary stay: it may yet be promoted.
    """
    rows = await connection.fetch(_DROP, lineage_id, ROLLED_BACK)
    if rows:
        await connection.execute(_VERDICTS, [row["turn_id"] for row in rows], ROLLED_BACK)
    return len(rows)
