"""Turns of a tenant as a list, and judged once more."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from gateway.store.changes import Change, note_change
from gateway.store.database import Database, seconds
from gateway.store.once import made_before
from gateway.store.pages import POSITION, page, position, wanted
from gateway.store.turn_filters import FILTERED, TurnFilters

Found = dict[str, Any]

# The ids of turns begin with their time: the newest first. `position` has nothing to add.
_PAGE = f"""
SELECT t.id, t.session_id, t.parent_id, t.kind, s.client, s.end_user, t.version_min, t.version_max,
    t.prompt_len, t.completion_len, t.finish_reason, t.trainable, t.untrainable_reason,
    j.score::float8 AS score, j.rule, v.outcome, v.reason AS verdict_reason,
    {seconds("t.created_at")} AS created_at, 0 AS {POSITION}
{FILTERED} AND ($16::uuid IS NULL OR t.id < $16)
ORDER BY t.id DESC LIMIT $17
"""

# Side calls are not judged, and what waits to be judged already is not queued twice.
_REJUDGE = f"""
WITH found AS (
    SELECT t.id, t.tenant_id {FILTERED} AND t.kind <> 'side' ORDER BY t.id DESC LIMIT $16
), queued AS (
    INSERT INTO judgements (turn_id, round, tenant_id)
    SELECT f.id, coalesce((SELECT max(j.round) FROM judgements j WHERE j.turn_id = f.id
        AND j.round > 0), 0) + 1, f.tenant_id
    FROM (SELECT * FROM found LIMIT $17) f
    WHERE NOT EXISTS (SELECT FROM judgements j WHERE j.turn_id = f.id AND j.state = 'queued')
    ON CONFLICT DO NOTHING RETURNING 1
)
SELECT (SELECT count(*) FROM found) AS found, (SELECT count(*) FROM queued) AS queued
"""  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Of `found` turns so many are `queued`; `more` may be found."""

    found: int
    queued: int
    more: bool


class TurnList:
    """Every method is inside one tenant, and raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, tenant_id: UUID, filters: TurnFilters, *, cursor: str | None, limit: int
    ) -> Found:
        """Turns without a word of what was said, the newest first."""
        _, last = position(cursor)
        most = wanted(limit)
        rows = await self._database.fetch(_PAGE, tenant_id, *filters.values(), last, most + 1)
        return page(rows, most, lambda row: row["id"])

    async def rejudge(self, change: Change, filters: TurnFilters, limit: int) -> Queued:
        """Queue another round for the newest turns that fit, at most `limit` of them.

        What the same change did before is told again. Raises Conflict as `made_before`.
        """
        async with self._database.transaction() as connection:
            if earlier := await made_before(connection, change.once):
                return Queued(**earlier["queued"])
            row = await connection.fetchrow(
                _REJUDGE, change.tenant_id, *filters.values(), limit + 1, limit
            )
            assert row is not None
            queued = Queued(
                found=min(limit, row["found"]), queued=row["queued"], more=row["found"] > limit
            )
            if queued.queued or change.once is not None:
                detail = {**change.detail, "queued": asdict(queued)}
                await note_change(connection, replace(change, detail=detail))
            if queued.queued:
                await connection.execute("SELECT pg_notify('nextstate_judge', '')")
        return queued
