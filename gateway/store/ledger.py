"""Versions, training steps, swaps and events, the latest first, a page at a time.

A tenant sees the lineages that it uses.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from gateway.errors import InvalidRequest
from gateway.store.database import Database, seconds
from gateway.store.lineage_use import used_by
from gateway.store.pages import POSITION, before, microseconds, page, position, wanted

Found = dict[str, Any]

_SEEN = used_by("$2")

_LINEAGE = f"""($1::uuid IS NULL OR {{table}}.lineage_id = $1)
  AND ($2::uuid IS NULL OR {{table}}.lineage_id IN {_SEEN})"""

# What gates found is not told at revision 0002, which has no column for it.
_POLICIES = f"""
SELECT p.lineage_id, l.name AS lineage, p.version, p.parent_version, p.kind, p.uri, p.checksum,
    p.state, p.reason, p.step_id, {seconds("p.created_at")} AS created_at,
    {seconds("p.live_at")} AS live_at, {seconds("p.ended_at")} AS ended_at,
    to_jsonb(p) -> 'gate' AS gate, p.version AS {POSITION}
FROM policies p JOIN lineages l ON l.id = p.lineage_id
WHERE {_LINEAGE.format(table="p")}
  AND ($3::int8 IS NULL OR p.lineage_id > $4 OR (p.lineage_id = $4 AND p.version < $3))
ORDER BY p.lineage_id, p.version DESC LIMIT $5
"""  # noqa: S608 - made of constants

_STEPS = f"""
SELECT s.id, s.lineage_id, s.epoch, s.from_version, s.to_version, s.metrics,
    (SELECT count(*) FROM samples a WHERE a.step_id = s.id) AS samples,
    (SELECT max(a.version_lag) FROM samples a WHERE a.step_id = s.id) AS lag_max,
    {seconds("s.started_at")} AS started_at, {seconds("s.ended_at")} AS ended_at,
    {microseconds("s.ended_at")} AS {POSITION}
FROM train_steps s
WHERE {_LINEAGE.format(table="s")} AND {before("s.ended_at", "s.id", "$3", "$4")}
ORDER BY s.ended_at DESC, s.id DESC LIMIT $5
"""  # noqa: S608

_SWAPS = f"""
SELECT s.id, s.lineage_id, s.engine, s.from_version, s.to_version, s.outcome, s.detail, s.load_ms,
    s.pause_ms, s.probe_max_diff, {seconds("s.started_at")} AS started_at,
    {seconds("s.ended_at")} AS ended_at, {microseconds("s.ended_at")} AS {POSITION}
FROM swaps s
WHERE {_LINEAGE.format(table="s")} AND {before("s.ended_at", "s.id", "$3", "$4")}
ORDER BY s.ended_at DESC, s.id DESC LIMIT $5
"""  # noqa: S608

# Of one tenant, or of a lineage that it uses: what is of neither is the operator's.
_EVENTS = f"""
SELECT e.id, {seconds("e.at")} AS at, e.name, e.detail
FROM events e
WHERE ($1::int8 IS NULL OR e.id < $1) AND ($3::text IS NULL OR e.name = $3)
  AND ($2::uuid IS NULL OR e.tenant_id = $2 OR (e.tenant_id IS NULL
    AND e.detail ->> 'lineage_id' IN (SELECT text(seen.lineage_id) FROM {_SEEN} AS seen)))
ORDER BY e.id DESC LIMIT $4
"""  # noqa: S608


async def policies(
    database: Database,
    tenant_id: UUID | None,
    lineage_id: UUID | None,
    cursor: str | None,
    limit: int,
) -> Found:
    """Versions, lineage by lineage, the newest of each first."""
    version, last = position(cursor)
    most = wanted(limit)
    rows = await database.fetch(_POLICIES, lineage_id, tenant_id, version, last, most + 1)
    return page(rows, most, lambda row: row["lineage_id"])


async def train_steps(
    database: Database,
    tenant_id: UUID | None,
    lineage_id: UUID | None,
    cursor: str | None,
    limit: int,
) -> Found:
    return await _latest(database, _STEPS, tenant_id, lineage_id, cursor, limit)


async def swaps(
    database: Database,
    tenant_id: UUID | None,
    lineage_id: UUID | None,
    cursor: str | None,
    limit: int,
) -> Found:
    return await _latest(database, _SWAPS, tenant_id, lineage_id, cursor, limit)


async def events(
    database: Database, tenant_id: UUID | None, name: str | None, cursor: str | None, limit: int
) -> Found:
    """Promotions, refusals and what else is noted. Raises InvalidRequest for a wrong cursor."""
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise InvalidRequest("The cursor is not one that was given out.", param="cursor")
    most = wanted(limit)
    last = None if cursor is None else int(cursor)
    rows = await database.fetch(_EVENTS, last, tenant_id, name, most + 1)
    items = [dict(row) for row in rows[:most]]
    return {"items": items, "next": str(items[-1]["id"]) if len(rows) > most else None}


async def _latest(  # noqa: PLR0917 - those of its callers
    database: Database,
    sql: str,
    tenant_id: UUID | None,
    lineage_id: UUID | None,
    cursor: str | None,
    limit: int,
) -> Found:
    number, last = position(cursor)
    most = wanted(limit)
    rows = await database.fetch(sql, lineage_id, tenant_id, number, last, most + 1)
    return page(rows, most, lambda row: row["id"])
