"""Turns that answer the same task, and whether all of them have a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from gateway.store.database import Database

#: Bits of an id below its milliseconds (UUID version 7).
_TIME = 80

#: The task that a turn shares with its siblings: named by the client, or the same request.
GROUP = """
    coalesce(
        t.tenant_id::text || ':' || t.group_id,
        concat_ws(':', coalesce(t.parent_id, t.tenant_id)::text, encode(t.request_hash, 'hex'))
    )
"""

# One that cannot be trained on, or has ended another way, holds up none.
_PENDING = """
    m.kind = 'main' AND m.trainable AND NOT m.redacted
    AND NOT EXISTS (SELECT FROM samples s WHERE s.turn_id = m.id)
    AND NOT EXISTS (SELECT FROM verdicts v WHERE v.turn_id = m.id)
"""

# Siblings are found by their request. Members of a named group are looked for among the turns made
# since a time before the first of these; ids sort by time, so that no more than those are read.
_OPEN_GROUPS = f"""
WITH t AS (SELECT * FROM turns WHERE id = ANY($1::uuid[]))
SELECT {GROUP} AS "group" FROM t
WHERE t.group_id IS NULL AND EXISTS (
    SELECT FROM turns m
    WHERE m.tenant_id = t.tenant_id AND m.request_hash = t.request_hash
      AND m.created_at >= t.created_at - make_interval(secs => $2)
      AND m.lineage_id = t.lineage_id AND m.parent_id IS NOT DISTINCT FROM t.parent_id
      AND m.group_id IS NULL AND {_PENDING}
)
UNION
SELECT t.tenant_id::text || ':' || t.group_id FROM t JOIN turns m
    ON m.tenant_id = t.tenant_id AND m.lineage_id = t.lineage_id AND m.group_id = t.group_id
WHERE m.id >= $3 AND {_PENDING}
"""  # noqa: S608


async def open_groups(
    database: Database, turn_ids: Sequence[UUID], within_s: float
) -> frozenset[str]:
    """The groups of turns that have a member without a verdict.

    Members are made at most `within_s` before the first of the turns.
    """
    if not turn_ids:
        return frozenset()
    oldest = (min(turn_ids).int >> _TIME) - int(within_s * 1000)
    since = UUID(int=max(0, oldest) << _TIME)
    rows = await database.fetch(_OPEN_GROUPS, list(turn_ids), within_s, since)
    return frozenset(row["group"] for row in rows)
