"""How many versions behind samples are: those that wait, and those that steps have used."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from gateway.store.database import Database
from gateway.store.lineage_use import used_by

Found = dict[str, Any]

_LINEAGES = f"""
SELECT id, name, live_version, trains FROM lineages
WHERE ($1::uuid IS NULL OR id IN {used_by("$1")})
ORDER BY name
"""  # noqa: S608 - made of constants

WAITING = """
SELECT s.lineage_id, l.live_version - s.version_min AS lag, count(*) AS samples
FROM samples s JOIN lineages l ON l.id = s.lineage_id JOIN turns t ON t.id = s.turn_id
WHERE s.state IN ('ready', 'leased') AND s.lineage_id = ANY($1::uuid[])
  AND ($2::uuid IS NULL OR t.tenant_id = $2)
GROUP BY 1, 2 ORDER BY 1, 2
"""

USED = """
SELECT s.lineage_id, s.version_lag AS lag, count(*) AS samples
FROM unnest($1::uuid[]) AS l(id)
CROSS JOIN LATERAL (
    SELECT id FROM train_steps WHERE lineage_id = l.id ORDER BY to_version DESC LIMIT $3
) step
JOIN samples s ON s.step_id = step.id JOIN turns t ON t.id = s.turn_id
WHERE ($2::uuid IS NULL OR t.tenant_id = $2)
GROUP BY 1, 2 ORDER BY 1, 2
"""


async def staleness(database: Database, tenant_id: UUID | None, steps: int) -> list[Found]:
    """`[{"lineage_id", "lineage", "live_version", "trains", "waiting", "used"}]`, by name.

    `waiting` and `used` are `[{"lag", "samples"}]`: of the samples that wait, behind the live
    version now, and of those of the last `steps` training steps, behind when they were used.
    """
    async with database.acquire() as connection:
        lineages = [dict(row) for row in await connection.fetch(_LINEAGES, tenant_id)]
        ids = [lineage["id"] for lineage in lineages]
        waiting = await connection.fetch(WAITING, ids, tenant_id)
        used = await connection.fetch(USED, ids, tenant_id, steps)

    def lags(rows: list[Any], lineage_id: UUID) -> list[Found]:
        own = [row for row in rows if row["lineage_id"] == lineage_id]
        return [{"lag": row["lag"], "samples": row["samples"]} for row in own]

    return [
        {
            "lineage_id": one["id"],
            "lineage": one["name"],
            "live_version": one["live_version"],
            "trains": one["trains"],
            "waiting": lags(waiting, one["id"]),
            "used": lags(used, one["id"]),
        }
        for one in lineages
    ]
