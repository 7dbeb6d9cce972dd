"""What Postgres says of versions: which are served, where they come from, where they lie."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import asyncpg

from gateway.errors import StoreError
from gateway.records import PolicyKind, PolicyRef, Served, Standing
from gateway.store.database import Database

# Where whole weights are replaced, the base is one of the versions that engines come to have.
_KIND = "CASE WHEN p.kind = 'base' AND l.kind = 'full' THEN 'full' ELSE p.kind END AS kind"

_POLICY = f"""
SELECT p.lineage_id, p.version, {_KIND}, p.uri, p.checksum
FROM policies p JOIN lineages l ON l.id = p.lineage_id
"""  # noqa: S608 - made of constants

_LIVE = f"{_POLICY} WHERE p.state = 'live'"

_CANDIDATE = f"""
{_POLICY} WHERE p.lineage_id = $1 AND p.state IN ('candidate', 'canary')
    AND p.version > l.live_version
ORDER BY p.version DESC LIMIT 1
"""

# Candidates of whole weights, and the engines that have been proved to compute them. While a
# version is pinned nothing is coming: engines that have another already are brought back to it.
_COMING = f"""
{_POLICY} WHERE l.kind = 'full' AND p.state = 'candidate' AND p.version > l.live_version
    AND l.pinned_version IS NULL
ORDER BY p.version
"""

_PROVED = """
SELECT engine FROM swaps WHERE lineage_id = $1 AND to_version = $2 AND outcome = 'loaded'
"""

# Beside the live version: the canary, and what no engine is to fall back on.
_BESIDE = """
SELECT l.id, l.canary_share, p.version, p.kind, p.uri, p.checksum, ARRAY(
    SELECT u.version FROM policies u
    WHERE u.lineage_id = l.id AND u.state IN ('rolled_back', 'refused')
    ORDER BY u.version DESC LIMIT 256
) AS undone
FROM lineages l LEFT JOIN policies p ON p.lineage_id = l.id AND p.version = l.canary_version
"""

_STANDING = f"""
SELECT l.epoch, l.canary_version, l.pinned_version, p.gate, c.gate AS canary_gate,
    p.lineage_id, p.version, {_KIND}, p.uri, p.checksum,
    c.kind AS canary_kind, c.uri AS canary_uri, c.checksum AS canary_checksum
FROM lineages l JOIN policies p ON p.lineage_id = l.id AND p.state = 'live'
LEFT JOIN policies c ON c.lineage_id = l.id AND c.version = l.canary_version
WHERE l.id = $1
"""  # noqa: S608 - made of constants

_CHAIN = """
WITH RECURSIVE chain AS (
    SELECT version, parent_version FROM policies WHERE lineage_id = $1 AND version = $2
    UNION ALL
    SELECT p.version, p.parent_version FROM policies p JOIN chain c
        ON p.lineage_id = $1 AND p.version = c.parent_version
    WHERE p.version > $3
)
SELECT version FROM chain WHERE version > $3 ORDER BY version DESC
"""

_METRICS = """
SELECT metrics FROM train_steps WHERE lineage_id = $1 AND to_version = $2
"""

_TURNS = """
SELECT s.turn_id, s.session_id, s.step_id FROM policies p JOIN samples s ON s.step_id = p.step_id
WHERE p.lineage_id = $1 AND p.version = $2 ORDER BY s.turn_id
"""

_CHECKPOINT = "SELECT checkpoint FROM policies WHERE lineage_id = $1 AND version = $2"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTurn:
    """One turn of a step."""

    turn_id: UUID
    session_id: UUID
    step_id: UUID


class PolicyReads:
    """Every method raises StoreUnavailable where Postgres is away.

    `base` is where the weights of version 0 lie, for engines whose weights are replaced whole.
    """

    def __init__(self, database: Database, base: str | None = None) -> None:
        self._database, self._base = database, base

    async def served(self) -> dict[UUID, Served]:
        """What engines are to serve of every lineage."""
        live = await self.live()
        if self._database.revision < "0003":
            return {lineage_id: Served(live=policy) for lineage_id, policy in live.items()}
        beside = {row["id"]: row for row in await self._database.fetch(_BESIDE)}
        served = {
            lineage_id: _served(policy, beside[lineage_id])
            for lineage_id, policy in live.items()
            if lineage_id in beside
        }
        if any(policy.kind is PolicyKind.FULL for policy in live.values()):
            await self._add_coming(served)
        return served

    async def _add_coming(self, served: dict[UUID, Served]) -> None:
        for row in await self._database.fetch(_COMING):
            coming = self._ref(row)
            lineage_id = coming.lineage_id
            if lineage_id in served:
                rows = await self._database.fetch(_PROVED, lineage_id, coming.version)
                served[lineage_id] = replace(
                    served[lineage_id],
                    coming=coming,
                    proved=frozenset(row["engine"] for row in rows),
                )

    async def standing(self, lineage_id: UUID) -> Standing:
        """Raises StoreError where there is no such lineage."""
        row = await self._database.fetchrow(_STANDING, lineage_id)
        if row is None:
            raise StoreError(f"there is no lineage {lineage_id}")
        canary = row["canary_version"]
        return Standing(
            epoch=row["epoch"],
            live=self._ref(row),
            canary=None
            if canary is None
            else PolicyRef(
                lineage_id=lineage_id,
                version=canary,
                kind=PolicyKind(row["canary_kind"]),
                uri=row["canary_uri"],
                checksum=row["canary_checksum"],
            ),
            pinned=row["pinned_version"],
            gate=row["gate"] or {},
            canary_gate=row["canary_gate"] or {},
        )

    async def live(self) -> dict[UUID, PolicyRef]:
        """The live version of every lineage."""
        rows = await self._database.fetch(_LIVE)
        return {row["lineage_id"]: self._ref(row) for row in rows}

    async def live_of(self, lineage_id: UUID) -> PolicyRef:
        """Raises StoreError where there is no such lineage."""
        row = await self._database.fetchrow(f"{_LIVE} AND p.lineage_id = $1", lineage_id)
        if row is None:
            raise StoreError(f"there is no lineage {lineage_id}")
        return self._ref(row)

    async def candidate_of(self, lineage_id: UUID) -> PolicyRef | None:
        """The newest version that was trained and neither promoted, refused nor rolled back."""
        row = await self._database.fetchrow(_CANDIDATE, lineage_id)
        return None if row is None else self._ref(row)

    async def checkpoint_of(self, lineage_id: UUID, version: int) -> str | None:
        """Where the trainer's own state of a version lies; None for the base model."""
        found: str | None = await self._database.fetchval(_CHECKPOINT, lineage_id, version)
        return found

    async def turns_of(self, lineage_id: UUID, version: int) -> list[TrainedTurn]:
        """The turns that the step of a version was trained on, the oldest first."""
        rows = await self._database.fetch(_TURNS, lineage_id, version)
        return [TrainedTurn(**row) for row in rows]

    async def line(self, lineage_id: UUID, version: int, beyond: int) -> list[int]:
        """A version and those it was trained from, newest first, as far as they are > `beyond`."""
        rows = await self._database.fetch(_CHAIN, lineage_id, version, beyond)
        return [row["version"] for row in rows]

    async def undone(self, lineage_id: UUID) -> frozenset[int]:
        """Versions that were rolled back or refused."""
        rows = await self._database.fetch(
            "SELECT version FROM policies WHERE lineage_id = $1"
            " AND state IN ('rolled_back', 'refused')",
            lineage_id,
        )
        return frozenset(row["version"] for row in rows)

    async def uris(self, lineage_id: UUID, versions: Collection[int]) -> list[str]:
        """Where the weights of versions lie; the base model has no place."""
        rows = await self._database.fetch(
            "SELECT uri FROM policies WHERE lineage_id = $1 AND version = ANY($2::int8[])"
            " AND uri IS NOT NULL",
            lineage_id,
            list(versions),
        )
        return [row["uri"] for row in rows]

    async def metrics_of(self, lineage_id: UUID, version: int) -> dict[str, Any]:
        """The metrics of the step that made a version; empty where none did."""
        found: dict[str, Any] | None = await self._database.fetchval(_METRICS, lineage_id, version)
        return found or {}

    def _ref(self, row: asyncpg.Record) -> PolicyRef:
        kind, uri = PolicyKind(row["kind"]), row["uri"]
        if uri is None and kind is PolicyKind.FULL:
            uri = self._base
        return PolicyRef(
            lineage_id=row["lineage_id"],
            version=row["version"],
            kind=kind,
            uri=uri,
            checksum=row["checksum"],
        )


def _served(live: PolicyRef, row: asyncpg.Record) -> Served:
    canary = None
    if row["version"] is not None:
        canary = PolicyRef(
            lineage_id=live.lineage_id,
            version=row["version"],
            kind=PolicyKind(row["kind"]),
            uri=row["uri"],
            checksum=row["checksum"],
        )
    return Served(
        live=live, canary=canary, share=row["canary_share"], undone=frozenset(row["undone"])
    )
