"""API keys as their tenant's admins see and change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal
from uuid import UUID

import asyncpg

from gateway.errors import Conflict, NotFound
from gateway.records import Role
from gateway.store.changes import Change, note_change
from gateway.store.database import Database, seconds
from gateway.store.keys import KeyStore
from gateway.store.once import made_before
from gateway.store.pages import POSITION, before, microseconds, page, position, wanted

Found = dict[str, Any]
#: Raises PreconditionFailed where what is stored is not what the asker has seen.
Expect = Callable[[Found], None]

State = Literal["valid", "expired", "revoked"]

_STATE = """CASE WHEN k.revoked_at IS NOT NULL THEN 'revoked'
    WHEN k.expires_at <= now() THEN 'expired' ELSE 'valid' END"""

_KEYS = f"""
SELECT k.id, k.tenant_id, t.name AS tenant, k.lineage_id, l.name AS lineage, k.name, k.hint,
    k.role, k.capture, k.on_stale, k.sampling, k.limits, {_STATE} AS state,
    {seconds("k.created_at")} AS created_at, {seconds("k.expires_at")} AS expires_at,
    {seconds("k.revoked_at")} AS revoked_at, {microseconds("k.created_at")} AS {POSITION}
FROM api_keys k JOIN tenants t ON t.id = k.tenant_id JOIN lineages l ON l.id = k.lineage_id
"""  # noqa: S608 - made of constants

_PAGE = f"""{_KEYS}
WHERE k.tenant_id = $1 AND {before("k.created_at", "k.id", "$2", "$3")}
  AND ($5::text IS NULL OR k.name = $5) AND ($6::text IS NULL OR k.role = $6)
  AND ($7::text IS NULL OR {_STATE} = $7)
ORDER BY k.created_at DESC, k.id DESC LIMIT $4
"""

_ONE = f"{_KEYS} WHERE k.id = $1 AND k.tenant_id = $2"

_HOLD = "SELECT FROM api_keys WHERE id = $1 AND tenant_id = $2 FOR UPDATE"

_CHANGE = """
UPDATE api_keys SET name = $2, capture = $3, on_stale = $4, sampling = $5, limits = $6,
    expires_at = to_timestamp($7)
WHERE id = $1
"""

_REVOKE = "UPDATE api_keys SET revoked_at = now() WHERE id = $1"

# One that is to end earlier does.
_END = """
UPDATE api_keys
SET expires_at = least(coalesce(expires_at, 'infinity'), now() + make_interval(secs => $2))
WHERE id = $1
"""

#: What a key may be changed in.
CHANGEABLE = ("name", "capture", "on_stale", "sampling", "limits", "expires_at")


class KeyRecords:
    """Every method raises StoreUnavailable; those of one key NotFound, all inside one tenant.

    A change is on record with whoever made it. This process knows of it at once, others within the
    time for which `KeyStore` believes what it read.
    """

    def __init__(self, database: Database, keys: KeyStore) -> None:
        self._database, self._keys = database, keys

    async def page(
        self,
        tenant_id: UUID,
        *,
        cursor: str | None,
        limit: int,
        name: str | None = None,
        role: Role | None = None,
        state: State | None = None,
    ) -> Found:
        """Keys, the newest first."""
        number, last = position(cursor)
        most = wanted(limit)
        rows = await self._database.fetch(
            _PAGE, tenant_id, number, last, most + 1, name, role, state
        )
        return page(rows, most, lambda row: row["id"])

    async def one(self, tenant_id: UUID, key_id: UUID) -> Found:
        async with self._database.acquire() as connection:
            return await _one(connection, tenant_id, key_id)

    async def create(
        self, change: Change, lineage_id: UUID, role: Role, values: Mapping[str, Any]
    ) -> tuple[Found, str | None]:
        """A new key of the change's tenant, and its secret, which nobody can read again.

        None where the key was made before by the same change. Raises Conflict as `made_before`.
        """
        async with self._database.transaction() as connection:
            if earlier := await made_before(connection, change.once):
                return await _one(connection, change.tenant_id, UUID(earlier["target"])), None
            key_id, secret = await self._keys.create(
                change.tenant_id, values["name"], role, lineage_id,
                **{name: values[name] for name in CHANGEABLE if name in values and name != "name"},
                connection=connection,
            )  # fmt: skip
            await note_change(connection, _about(change, key_id))
            return await _one(connection, change.tenant_id, key_id), secret

    async def change(
        self, change: Change, key_id: UUID, values: Mapping[str, Any], expect: Expect
    ) -> Found:
        """Set what is named in `values`. Raises Conflict for a revoked key."""
        async with self._database.transaction() as connection:
            found = await _held(connection, change.tenant_id, key_id, expect)
            if found["revoked_at"] is not None:
                raise Conflict("A revoked key cannot be changed.")
            new = {name: found[name] for name in CHANGEABLE} | dict(values)
            if any(new[name] != found[name] for name in CHANGEABLE):
                await connection.execute(_CHANGE, key_id, *(new[name] for name in CHANGEABLE))
                await note_change(connection, _about(change, key_id, changed=sorted(values)))
            found = await _one(connection, change.tenant_id, key_id)
        self._keys.forget(key_id)
        return found

    async def revoke(self, change: Change, key_id: UUID, expect: Expect) -> Found:
        """Refuse a key from now on; one that is revoked already stays as it is."""
        async with self._database.transaction() as connection:
            found = await _held(connection, change.tenant_id, key_id, expect)
            if found["revoked_at"] is None:
                await connection.execute(_REVOKE, key_id)
                await note_change(connection, _about(change, key_id))
                found = await _one(connection, change.tenant_id, key_id)
        self._keys.forget(key_id)
        return found

    async def rotate(
        self, change: Change, key_id: UUID, grace_s: float, expect: Expect
    ) -> tuple[Found, str | None]:
        """A new key like this one, which itself is taken for `grace_s` more; with its secret.

        Without, where it was made before by the same change. Raises Conflict for one that is
        revoked or has expired, and as `made_before`.
        """
        async with self._database.transaction() as connection:
            if earlier := await made_before(connection, change.once):
                return await _one(connection, change.tenant_id, UUID(earlier["new"])), None
            old = await _held(connection, change.tenant_id, key_id, expect)
            if old["state"] != "valid":
                raise Conflict(f"The key is {old['state']}: create another one.")
            new_id, secret = await self._keys.create(
                change.tenant_id, old["name"], Role(old["role"]), old["lineage_id"],
                **{name: old[name] for name in CHANGEABLE if name != "name"},
                connection=connection,
            )  # fmt: skip
            await connection.execute(_END, key_id, grace_s)
            await note_change(connection, _about(change, key_id, new=str(new_id), grace_s=grace_s))
            found = await _one(connection, change.tenant_id, new_id)
        self._keys.forget(key_id)
        return found, secret


def _about(change: Change, key_id: UUID, **detail: Any) -> Change:
    return replace(change, target=str(key_id), detail={**change.detail, **detail})


async def _one(connection: asyncpg.Connection, tenant_id: UUID, key_id: UUID) -> Found:
    row = await connection.fetchrow(_ONE, key_id, tenant_id)
    if row is None:
        raise NotFound("There is no such key.")
    found = dict(row)
    del found[POSITION]
    return found


async def _held(
    connection: asyncpg.Connection, tenant_id: UUID, key_id: UUID, expect: Expect
) -> Found:
    """A key as it stands, which nobody changes before the transaction ends."""
    await connection.execute(_HOLD, key_id, tenant_id)
    found = await _one(connection, tenant_id, key_id)
    expect(found)
    return found
