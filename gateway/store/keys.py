"""API keys, and the tenants and lineages that they name."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID

import asyncpg

from gateway.errors import AuthenticationError, ConfigError, StoreError
from gateway.records import Principal, Role, new_id
from gateway.store.database import Database, seconds
from gateway.telemetry import get_logger

log = get_logger(__name__)

_PREFIX = "sk-ns-"
_LONGEST_HINT = len(_PREFIX) + 4
_SHORTEST = 16
_MOST_CACHED = 8192
_REFUSED_TTL_S = 1.0
_PATIENCE_S = 1.0

#: SQL: whether a key `k` is still taken.
VALID = "k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())"

# A tenant may be left out altogether; revision 0002 has no settings of tenants.
_LOOK_UP = f"""
SELECT k.id, k.digest, k.tenant_id, t.name AS tenant, k.name, k.role, k.lineage_id,
    k.capture AND coalesce((to_jsonb(t) #>> '{{settings,capture}}')::bool, true) AS capture,
    k.on_stale, k.sampling, k.limits, k.revoked_at IS NOT NULL AS revoked,
    to_jsonb(t) #> '{{settings,limits}}' AS tenant_limits, {seconds("k.expires_at")} AS expires_at
FROM api_keys k JOIN tenants t ON t.id = k.tenant_id WHERE k.digest = $1
"""  # noqa: S608 - made of constants

_CREATE = """
INSERT INTO api_keys
    (id, tenant_id, lineage_id, name, hint, digest, role, capture, on_stale, sampling, limits,
    expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, to_timestamp($12))
"""

_REVOKE = "UPDATE api_keys SET revoked_at = now() WHERE id = $1 AND revoked_at IS NULL"

_LIST = f"""
SELECT k.id, t.name AS tenant, l.name AS lineage, k.name, k.hint, k.role, k.on_stale,
    {seconds("k.created_at")} AS created_at, {seconds("k.expires_at")} AS expires_at,
    {seconds("k.revoked_at")} AS revoked_at
FROM api_keys k JOIN tenants t ON t.id = k.tenant_id JOIN lineages l ON l.id = k.lineage_id
ORDER BY k.created_at, k.id
"""  # noqa: S608 - made of constants

_ENSURE_TENANT = """
INSERT INTO tenants (id, name) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id
"""

_ENSURE_LINEAGE = """
INSERT INTO lineages (id, name, base_model, kind, trains) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE SET trains = excluded.trains RETURNING id, base_model, kind
"""

_BASE_POLICY = """
INSERT INTO policies (lineage_id, version, kind, state, live_at)
VALUES ($1, 0, 'base', 'live', now()) ON CONFLICT (lineage_id, version) DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class _Known:
    """A key as it was last read: None for one that is to be refused."""

    principal: Principal | None
    expires_at: float | None
    fresh_until: float


class KeyStore:
    """Resolves secrets. Only their SHA-256 is stored, and only that is looked up.

    What was read is believed for `ttl_s`; while Postgres is away, for as long as it is away.
    """

    def __init__(self, database: Database, ttl_s: float = 5.0) -> None:
        self._database = database
        self._ttl_s = ttl_s
        self._valid: OrderedDict[bytes, _Known] = OrderedDict()
        # Apart, so that guesses cannot push out what is valid.
        self._refused: OrderedDict[bytes, _Known] = OrderedDict()
        self._reads: dict[bytes, asyncio.Task[_Known]] = {}

    async def principal(self, secret: str) -> Principal:
        """Who the holder of a secret is.

        Raises AuthenticationError for an unknown, revoked or expired key, StoreUnavailable where
        Postgres is away and the key has not been seen.
        """
        digest = _digest(secret)
        known = self._valid.get(digest)
        refused = self._refused.get(digest) if known is None else None
        if refused is not None and refused.fresh_until >= time.monotonic():
            known = refused
        elif known is None or known.fresh_until < time.monotonic():
            known = await self._refreshed(digest, known)
        if known.principal is None:
            raise AuthenticationError("Incorrect API key provided.")
        if known.expires_at is not None and known.expires_at <= time.time():
            raise AuthenticationError("The API key has expired.", code="expired_api_key")
        return known.principal

    async def create(
        self,
        tenant: UUID,
        name: str,
        role: Role,
        lineage: UUID,
        *,
        capture: bool = True,
        on_stale: Literal["serve", "reject"] | None = None,
        sampling: Mapping[str, float] | None = None,
        limits: Mapping[str, int] | None = None,
        expires_at: float | None = None,
        secret: str | None = None,
        connection: asyncpg.Connection | None = None,
    ) -> tuple[UUID, str]:
        """A new key and its secret, which is not stored and cannot be shown again.

        Back-pressure rejects `rollout` keys and serves others unless `on_stale` says otherwise.
        Raises ConfigError for a `secret` of the operator's own that is too short, StoreError for
        one that exists. With a `connection`, in its transaction.
        """
        key_id = new_id()
        secret = secret or _PREFIX + secrets.token_urlsafe(32)
        if len(secret) < _SHORTEST:
            raise ConfigError(f"an API key must have at least {_SHORTEST} characters")
        stale = on_stale or ("reject" if role is Role.ROLLOUT else "serve")
        try:
            await (connection or self._database).execute(
                _CREATE,
                key_id,
                tenant,
                lineage,
                name,
                secret[: min(_LONGEST_HINT, len(secret) // 4)],
                _digest(secret),
                role.value,
                capture,
                stale,
                sampling,
                limits,
                expires_at,
            )
        except asyncpg.UniqueViolationError:
            raise StoreError("this API key exists already") from None
        self._refused.pop(_digest(secret), None)
        return key_id, secret

    async def revoke(self, key_id: UUID) -> bool:
        """Refuse a key from now on, elsewhere within the time-to-live; whether it was valid."""
        done = await self._database.execute(_REVOKE, key_id)
        self.forget(key_id)
        return done == "UPDATE 1"

    def forget(self, key_id: UUID) -> None:
        """Read a key anew when it is used next."""
        for digest, known in list(self._valid.items()):
            if known.principal is not None and known.principal.key_id == key_id:
                del self._valid[digest]

    async def listed(self) -> list[dict[str, Any]]:
        """Every key, the oldest first: of its secret only the first characters are known."""
        return [dict(row) for row in await self._database.fetch(_LIST)]

    async def ensure_tenant(self, name: str) -> UUID:
        found: UUID = await self._database.fetchval(_ENSURE_TENANT, new_id(), name)
        return found

    async def ensure_lineage(
        self,
        name: str,
        base_model: str,
        kind: Literal["lora", "full"] = "lora",
        trains: bool = True,
    ) -> UUID:
        """The lineage of a name, made with its version 0 (the base model, live) where it is new.

        Raises StoreError where it exists over another base model or of the other kind.
        """
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(
                _ENSURE_LINEAGE, new_id(), name, base_model, kind, trains
            )
            assert row is not None
            if (row["base_model"], row["kind"]) != (base_model, kind):
                raise StoreError(
                    f"lineage {name!r} is {row['kind']} over {row['base_model']}, "
                    f"not {kind} over {base_model}"
                )
            found: UUID = row["id"]
            await connection.execute(_BASE_POLICY, found)
        return found

    async def _refreshed(self, digest: bytes, known: _Known | None) -> _Known:
        """What Postgres says now, asked once for all who wait; `known` where it says nothing."""
        task = self._reads.get(digest)
        if task is None:
            task = self._reads[digest] = asyncio.create_task(self._read(digest))
            task.add_done_callback(lambda task: self._read_ended(digest, task))
        await asyncio.wait({task}, timeout=None if known is None else _PATIENCE_S)
        if known is not None and (not task.done() or task.exception() is not None):
            return known
        return task.result()

    def _read_ended(self, digest: bytes, task: asyncio.Task[_Known]) -> None:
        del self._reads[digest]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("key_not_read", error=str(error))
            if (known := self._valid.get(digest)) is not None:
                self._valid[digest] = replace(known, fresh_until=time.monotonic() + self._ttl_s)

    async def _read(self, digest: bytes) -> _Known:
        row = await self._database.fetchrow(_LOOK_UP, digest)
        now = time.monotonic()
        self._valid.pop(digest, None)
        self._refused.pop(digest, None)
        if row is None or row["revoked"] or not hmac.compare_digest(row["digest"], digest):
            known = _Known(None, None, now + min(_REFUSED_TTL_S, self._ttl_s))
            cache = self._refused
        else:
            known = _Known(_principal(dict(row)), row["expires_at"], now + self._ttl_s)
            cache = self._valid
        cache[digest] = known
        while len(cache) > _MOST_CACHED:
            cache.popitem(last=False)
        return known


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


def _principal(row: dict[str, Any]) -> Principal:
    return Principal(
        key_id=row["id"],
        tenant_id=row["tenant_id"],
        tenant=row["tenant"],
        name=row["name"],
        role=Role(row["role"]),
        lineage_id=row["lineage_id"],
        capture=row["capture"],
        on_stale=row["on_stale"],
        sampling=row["sampling"],
        limits=row["limits"],
        tenant_limits=row["tenant_limits"],
    )
