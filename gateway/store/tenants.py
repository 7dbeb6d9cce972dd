"""Tenants: whose keys, sessions and settings are whose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg

from gateway.errors import Conflict, NotFound
from gateway.records import new_id
from gateway.store.changes import Change, note_change
from gateway.store.database import Database, seconds
from gateway.store.keys import VALID
from gateway.store.once import made_before
from gateway.store.packing import scrub
from gateway.store.pages import POSITION, before, microseconds, page, position, wanted

Found = dict[str, Any]
#: Raises PreconditionFailed where what is stored is not what the asker has seen.
Expect = Callable[[Found], None]

_TENANTS = f"""
SELECT t.id, t.name, coalesce(t.settings, '{{}}') AS settings,
    {seconds("t.created_at")} AS created_at,
    (SELECT count(*) FROM api_keys k WHERE k.tenant_id = t.id AND {VALID}) AS valid_keys,
    {microseconds("t.created_at")} AS {POSITION}
FROM tenants t
"""  # noqa: S608 - made of constants

_PAGE = f"""{_TENANTS}
WHERE ($1::uuid IS NULL OR t.id = $1) AND {before("t.created_at", "t.id", "$2", "$3")}
  AND ($5::text IS NULL OR t.name = $5)
ORDER BY t.created_at DESC, t.id DESC LIMIT $4
"""

_ONE = f"{_TENANTS} WHERE t.id = $1"

_CREATE = "INSERT INTO tenants (id, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING 1"

_SET = "UPDATE tenants SET settings = $2 WHERE id = $1"


class TenantStore:
    """Every method raises StoreUnavailable, those of one tenant NotFound."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, only: UUID | None, *, cursor: str | None, limit: int, name: str | None = None
    ) -> Found:
        """Tenants, or `only` one, the newest first."""
        number, last = position(cursor)
        most = wanted(limit)
        rows = await self._database.fetch(_PAGE, only, number, last, most + 1, name)
        return page(rows, most, lambda row: row["id"])

    async def one(self, tenant_id: UUID) -> Found:
        async with self._database.acquire() as connection:
            return await _one(connection, tenant_id)

    async def create(self, change: Change, name: str) -> Found:
        """A new tenant, or the one that the same change made before.

        `change` is told of by the tenant of who made it. Raises Conflict.
        """
        tenant_id = new_id()
        async with self._database.transaction() as connection:
            if earlier := await made_before(connection, change.once):
                return await _one(connection, UUID(earlier["tenant_id"]))
            if not await connection.fetchval(_CREATE, tenant_id, name):
                raise Conflict(f"There is a tenant {name!r} already.")
            detail = {**change.detail, "tenant_id": str(tenant_id)}
            await note_change(connection, replace(change, detail=detail))
            return await _one(connection, tenant_id)

    async def change(
        self, change: Change, merge: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        expect: Expect,
    ) -> Found:  # fmt: skip
        """Set what `merge` makes of the settings of the change's tenant."""
        tenant_id = change.tenant_id
        async with self._database.transaction() as connection:
            await connection.execute("SELECT FROM tenants WHERE id = $1 FOR UPDATE", tenant_id)
            found = await _one(connection, tenant_id)
            expect(found)
            settings = merge(found["settings"])
            if settings == found["settings"]:
                return found
            await connection.execute(_SET, tenant_id, scrub(dict(settings)))
            await note_change(connection, change)
            return await _one(connection, tenant_id)


async def _one(connection: asyncpg.Connection, tenant_id: UUID) -> Found:
    row = await connection.fetchrow(_ONE, tenant_id)
    if row is None:
        raise NotFound("There is no such tenant.")
    found = dict(row)
    del found[POSITION]
    return found
