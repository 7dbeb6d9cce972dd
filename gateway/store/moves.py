"""Moving a lineage from one version to another: back, forward, or not at all.

Postgres is what gateways and trainers follow, so these work with or without a trainer. Each move
begins a new epoch: whatever the leading trainer has under way, it can name nothing any more, and
it leads anew from what is live then, optimizer included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from gateway.errors import Conflict, NotFound
from gateway.store.ancestry import drop_strays
from gateway.store.database import Database, seconds
from gateway.store.fence import hold_epoch
from gateway.store.lineage_use import used_by
from gateway.store.policies import note, tell
from gateway.store.quarantine import quarantine

_STANDING = "SELECT live_version, canary_version, pinned_version FROM lineages WHERE id = $1"

_HOLD = f"{_STANDING} FOR NO KEY UPDATE"

# From the live version to the base, newest first.
_LINE = """
WITH RECURSIVE line AS (
    SELECT p.*, 0 AS steps FROM policies p WHERE p.lineage_id = $1 AND p.version = $2
    UNION ALL
    SELECT p.*, c.steps + 1 FROM policies p JOIN line c
        ON p.lineage_id = $1 AND p.version = c.parent_version
)
SELECT version, kind = 'base' OR checkpoint IS NOT NULL AS kept FROM line ORDER BY steps
"""

_STATE = "SELECT state FROM policies WHERE lineage_id = $1 AND version = $2"

_UNDO = """
UPDATE policies SET state = 'rolled_back', reason = $3, ended_at = now(), gate = coalesce($4, gate)
WHERE lineage_id = $1 AND version = ANY($2::int8[])
"""

_OPEN = """
SELECT version FROM policies
WHERE lineage_id = $1 AND state IN ('candidate', 'canary') AND parent_version = ANY($2::int8[])
"""

_RETIRE = """
UPDATE policies SET state = 'retired', ended_at = now() WHERE lineage_id = $1 AND state = 'live'
"""

_LIVE = """
UPDATE policies SET state = 'live', reason = NULL, ended_at = NULL,
    live_at = coalesce(live_at, now())
WHERE lineage_id = $1 AND version = $2
"""

# Somebody's word: what its gate would have found is not asked any more.
_BY_HAND = """
UPDATE policies SET gate = gate || '{"state": "by_hand"}'
WHERE lineage_id = $1 AND version = $2 AND gate ->> 'state' = 'open'
"""

_MOVE = """
UPDATE lineages SET live_version = $2, epoch = epoch + 1, canary_version = $3,
    canary_share = CASE WHEN $3::int8 IS NULL THEN 0 ELSE canary_share END
WHERE id = $1
"""

_LINEAGE = f"""
SELECT id FROM lineages WHERE name = $1 AND ($2::uuid IS NULL OR id IN {used_by("$2")})
"""  # noqa: S608 - made of constants

_VERSIONS = f"""
SELECT version, parent_version, kind, state, reason, gate,
    kind = 'base' OR checkpoint IS NOT NULL AS kept,
    {seconds("created_at")} AS created_at, {seconds("live_at")} AS live_at,
    {seconds("ended_at")} AS ended_at
FROM policies WHERE lineage_id = $1 ORDER BY version DESC LIMIT $2
"""  # noqa: S608 - made of constants

_PIN = "UPDATE lineages SET pinned_version = $2 WHERE id = $1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How a lineage stands after a move; `changed` is false where it stood so already.

    `quarantined` are samples that the versions `undone` were trained on, `dropped` those that
    they sampled and nobody has trained on yet.
    """

    live_version: int
    canary_version: int | None
    pinned_version: int | None
    changed: bool = False
    undone: list[int] = field(default_factory=list)
    quarantined: int = 0
    dropped: int = 0


class PolicyMoves:
    """What operators and gates do to a lineage. All of it raises NotFound, Conflict and StoreError.

    Asking for what is so already is no error.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def lineage(self, name: str, tenant_id: UUID | None = None) -> UUID:
        """The lineage of a name; with a tenant, one that a key of it names which is still taken.

        Raises Conflict at revision 0002, which knows no canaries, pins and gates.
        """
        if self._database.revision < "0003":
            raise Conflict("The database is of an earlier release: run `nextstate migrate` first.")
        found: UUID | None = await self._database.fetchval(_LINEAGE, name, tenant_id)
        if found is None:
            raise NotFound(f"There is no lineage {name!r}.")
        return found

    async def listed(self, lineage_id: UUID, limit: int) -> dict[str, Any]:
        """How a lineage stands, and its newest versions with what their gates found."""
        standing = await self._database.fetchrow(_STANDING, lineage_id)
        if standing is None:
            raise NotFound("There is no such lineage.")
        rows = await self._database.fetch(_VERSIONS, lineage_id, limit)
        return {**dict(standing), "versions": [dict(row) for row in rows]}

    async def rollback(
        self,
        lineage_id: UUID,
        version: int | None = None,
        *,
        reason: str,
        to: int | None = None,
        epoch: int | None = None,
        gate: Mapping[str, Any] | None = None,
    ) -> Moved:
        """Take a version back, and all that came of it; by default the canary, else the live one.

        What was live before it, or `to`, is live again. The samples of the steps that made what is
        undone are quarantined, those that it sampled dropped. With `epoch`, raises NotLeader where
        that is over.
        """
        async with self._database.transaction() as connection:
            if epoch is not None:
                await hold_epoch(connection, lineage_id, epoch)
            now = await _hold(connection, lineage_id)
            if version is None:
                version = now.canary_version if to is None and now.canary_version else None
            version = now.live_version if version is None else version
            state = await connection.fetchval(_STATE, lineage_id, version)
            if state is None:
                raise NotFound(f"There is no version {version}.")
            if state in ("rolled_back", "refused"):
                return now
            if version == now.canary_version:
                live, undone = now.live_version, [version]
            else:
                live, undone = await self._back(connection, lineage_id, now, version, to)
            rows = await connection.fetch(_OPEN, lineage_id, undone)
            undone = sorted({*undone, *(row["version"] for row in rows)}, reverse=True)
            await connection.execute(_UNDO, lineage_id, undone, reason, gate)
            await connection.execute(_LIVE, lineage_id, live)
            await connection.execute(_MOVE, lineage_id, live, None)
            held = await quarantine(connection, lineage_id, undone)
            dropped = await drop_strays(connection, lineage_id)
            await note(
                connection,
                "rolled_back",
                lineage_id,
                version,
                reason=reason,
                live=live,
                undone=undone,
                quarantined=held,
                dropped=dropped,
            )
            await tell(connection, lineage_id)
        return Moved(
            live_version=live,
            canary_version=None,
            pinned_version=now.pinned_version,
            changed=True,
            undone=undone,
            quarantined=held,
            dropped=dropped,
        )

    async def _back(
        self,
        connection: asyncpg.Connection,
        lineage_id: UUID,
        now: Moved,
        version: int,
        to: int | None,
    ) -> tuple[int, list[int]]:
        """What is live once a version is taken back that led to what is, and what is undone."""
        rows = await connection.fetch(_LINE, lineage_id, now.live_version)
        line = [row["version"] for row in rows]
        if version not in line:
            raise Conflict(f"Version {version} is not served, nor did it lead to the live one.")
        earlier = rows[line.index(version) + 1 :]
        if not earlier:
            raise Conflict("The base model cannot be taken back.")
        _unpinned(now)
        if to is None:
            live = next(row["version"] for row in earlier if row["kept"])
        elif not any(row["version"] == to for row in earlier):
            raise Conflict(f"Version {to} did not lead to version {version}.")
        elif not any(row["version"] == to and row["kept"] for row in earlier):
            raise Conflict(f"The files of version {to} are gone.")
        else:
            live = to
        return live, line[: line.index(live)]

    async def promote(self, lineage_id: UUID, version: int, *, reason: str) -> Moved:
        """Make the canary live, or a version that was rolled back or retired from the live one."""
        async with self._database.transaction() as connection:
            now = await _hold(connection, lineage_id)
            if version == now.live_version:
                return now
            state = await connection.fetchval(_STATE, lineage_id, version)
            if state is None:
                raise NotFound(f"There is no version {version}.")
            if state == "candidate":
                raise Conflict(f"Version {version} has not been proved on any engine yet.")
            if state == "refused":
                raise Conflict(f"Version {version} was refused: engines compute something else.")
            _unpinned(now)
            rows = await connection.fetch(_LINE, lineage_id, version)
            line = [row["version"] for row in rows]
            if now.live_version not in line:
                raise Conflict(
                    f"Version {version} does not come from the live one. To go back to an earlier "
                    "version, roll back what came after it."
                )
            if not rows[0]["kept"]:
                raise Conflict(f"The files of version {version} are gone.")
            await connection.execute(_RETIRE, lineage_id)
            await connection.execute(_LIVE, lineage_id, version)
            await connection.execute(_BY_HAND, lineage_id, version)
            canary = now.canary_version if now.canary_version != version else None
            if canary is not None:
                await connection.execute(
                    _UNDO, lineage_id, [canary], f"version {version} was promoted", None
                )
                await quarantine(connection, lineage_id, [canary])
            await connection.execute(_MOVE, lineage_id, version, None)
            dropped = await drop_strays(connection, lineage_id)
            await note(connection, "promoted", lineage_id, version, reason=reason)
            await tell(connection, lineage_id)
        return Moved(
            live_version=version,
            canary_version=None,
            pinned_version=now.pinned_version,
            changed=True,
            dropped=dropped,
        )

    async def pin(self, lineage_id: UUID, version: int, *, reason: str) -> Moved:
        """Keep the live version: nothing is promoted or rolled back until it is unpinned."""
        async with self._database.transaction() as connection:
            now = await _hold(connection, lineage_id)
            if version != now.live_version:
                state = await connection.fetchval(_STATE, lineage_id, version)
                if state is None:
                    raise NotFound(f"There is no version {version}.")
                raise Conflict(
                    f"Version {now.live_version} is live. Promote version {version} or go back to "
                    "it first."
                )
            return await self._pin(connection, lineage_id, now, version, reason)

    async def unpin(
        self, lineage_id: UUID, version: int | None = None, *, reason: str = ""
    ) -> Moved:
        """Let versions be promoted and rolled back again."""
        async with self._database.transaction() as connection:
            now = await _hold(connection, lineage_id)
            if version is not None and now.pinned_version not in (None, version):
                raise Conflict(f"Version {now.pinned_version} is pinned, not {version}.")
            return await self._pin(connection, lineage_id, now, None, reason)

    async def _pin(
        self,
        connection: asyncpg.Connection,
        lineage_id: UUID,
        now: Moved,
        version: int | None,
        reason: str,
    ) -> Moved:
        if now.pinned_version == version:
            return now
        await connection.execute(_PIN, lineage_id, version)
        what = now.pinned_version if version is None else version
        assert what is not None
        name = "unpinned" if version is None else "pinned"
        await note(connection, name, lineage_id, what, reason=reason)
        await tell(connection, lineage_id)
        return Moved(
            live_version=now.live_version,
            canary_version=now.canary_version,
            pinned_version=version,
            changed=True,
        )


async def _hold(connection: asyncpg.Connection, lineage_id: UUID) -> Moved:
    """How the lineage stands, which nobody changes before the transaction ends."""
    row = await connection.fetchrow(_HOLD, lineage_id)
    if row is None:
        raise NotFound("There is no such lineage.")
    return Moved(**dict(row))


def _unpinned(now: Moved) -> None:
    if now.pinned_version is not None:
        raise Conflict(f"Version {now.pinned_version} is pinned: unpin it first.", code="pinned")
