"""Jobs whose turns are too far behind to be trained on: skipped, before anybody is asked."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from gateway.store.verdicts import put_verdict

_MOST = 5000

# The live versions and those that they come from, back to $1 steps. Numbers alone do not tell:
# version 8 may come from 5, the others having been rolled back.
_FRESH = """
RECURSIVE fresh AS (
    SELECT id AS lineage_id, live_version AS version, 0 AS steps FROM lineages WHERE trains
    UNION ALL
    SELECT f.lineage_id, p.parent_version, f.steps + 1
    FROM fresh f JOIN policies p ON p.lineage_id = f.lineage_id AND p.version = f.version
    WHERE f.steps < $1 AND p.parent_version IS NOT NULL
)
"""

# What the trainer would drop as stale is worth nobody's time; somebody's own word is kept.
_STALE = """
    JOIN turns t ON t.id = j.turn_id JOIN lineages l ON l.id = t.lineage_id
WHERE j.round = 1 AND t.kind = 'main' AND t.trainable AND l.trains
  AND l.live_version - t.version_min > $1
  AND NOT EXISTS (
    SELECT FROM fresh f WHERE f.lineage_id = t.lineage_id AND f.version = t.version_min)
  AND NOT EXISTS (SELECT FROM feedback f WHERE f.turn_id = t.id)
"""

_ANY_STALE = f"""
WITH {_FRESH} SELECT EXISTS (SELECT FROM judgements j {_STALE} AND j.turn_id = ANY($2::uuid[]))
"""  # noqa: S608 - made of constants

_SKIP_STALE = f"""
WITH {_FRESH}, stale AS (
    SELECT j.turn_id, j.round, t.created_at FROM judgements j {_STALE}
      AND (j.state = 'queued' AND j.run_after <= now()
           OR j.state = 'leased' AND j.lease_owner = $2 AND j.turn_id = ANY($3::uuid[]))
    ORDER BY j.run_after LIMIT $4
    FOR UPDATE OF j SKIP LOCKED
)
UPDATE judgements j SET state = 'skipped', reason = 'stale', done_at = now(),
    lease_owner = NULL, lease_until = NULL
FROM stale WHERE j.turn_id = stale.turn_id AND j.round = stale.round
RETURNING j.turn_id, coalesce(extract(epoch FROM (
    SELECT n.arrived_at FROM next_states n WHERE n.turn_id = j.turn_id
) - stale.created_at), 0)::float8 AS delay_s
"""  # noqa: S608


async def skip_stale(
    connection: asyncpg.Connection, max_lag: int, worker_id: UUID, leased: list[UUID]
) -> dict[UUID, float]:
    """Skip those of the `leased` turns, and of those queued behind them, beyond `max_lag`.

    Nothing is done where none of the leased ones is: stale ones come in runs, and the look at the
    queue costs. The turns that were skipped are returned, with the seconds until somebody
    answered; each has a verdict.
    """
    if not await connection.fetchval(_ANY_STALE, max_lag, leased):
        return {}
    rows = await connection.fetch(_SKIP_STALE, max_lag, worker_id, leased, _MOST)
    for row in rows:
        await put_verdict(connection, row["turn_id"], "dropped", "stale")
    return {row["turn_id"]: row["delay_s"] for row in rows}
