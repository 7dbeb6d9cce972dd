"""Versions of a lineage: named here before any engine is given them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg

from gateway.errors import NotLeader, StoreError
from gateway.records import PolicyKind, PolicyRef, StepRecord, SwapRecord, new_id
from gateway.store.database import Database
from gateway.store.fence import hold_epoch
from gateway.store.leadership import Leadership
from gateway.store.verdicts import put_trained

_ALLOCATE = """
UPDATE lineages SET next_version = next_version + 1 WHERE id = $1 AND epoch = $2
RETURNING next_version - 1
"""

_ADD_POLICY = """
INSERT INTO policies
    (lineage_id, version, parent_version, kind, uri, checksum, checkpoint, state, step_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'candidate', $8)
"""

_ADD_STEP = """
INSERT INTO train_steps
    (id, lineage_id, epoch, from_version, to_version, metrics, started_at, ended_at)
VALUES ($1, $2, $3, $4, $5, $6, to_timestamp($7), to_timestamp($8))
"""

_CONSUME = """
UPDATE samples s SET state = 'trained', step_id = $3, version_lag = used.lag
FROM unnest($4::uuid[], $5::int8[]) AS used(id, lag)
WHERE s.id = used.id AND s.lineage_id = $1 AND s.state = 'leased' AND s.lease_epoch = $2
RETURNING s.turn_id
"""

_RETIRE = """
UPDATE policies SET state = 'retired', ended_at = now()
WHERE lineage_id = $1 AND state = 'live' AND version <> $2
"""

_PROMOTE = """
UPDATE policies SET state = 'live', live_at = coalesce(live_at, now()), ended_at = NULL
WHERE lineage_id = $1 AND version = $2 AND state IN ('candidate', 'canary', 'live')
"""

_SET_LIVE = "UPDATE lineages SET live_version = $2 WHERE id = $1"

_REFUSE = """
UPDATE policies SET state = 'refused', reason = $3, ended_at = now()
WHERE lineage_id = $1 AND version = $2 AND state IN ('candidate', 'canary')
"""

_EVENT = "INSERT INTO events (name, detail) VALUES ($1, $2)"

_POLICY = "SELECT lineage_id, version, kind, uri, checksum FROM policies"

_LIVE = f"{_POLICY} WHERE state = 'live'"

_CANDIDATE = f"""
{_POLICY} WHERE lineage_id = $1 AND state = 'candidate'
    AND version > (SELECT live_version FROM lineages WHERE id = $1)
ORDER BY version DESC LIMIT 1
"""  # noqa: S608 - made of constants

_CHECKPOINT = "SELECT checkpoint FROM policies WHERE lineage_id = $1 AND version = $2"

_ADD_SWAP = """
INSERT INTO swaps (id, lineage_id, engine, from_version, to_version, outcome, detail, load_ms,
    pause_ms, probe_max_diff, started_at, ended_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, to_timestamp($11), to_timestamp($12))
"""


class PolicyStore:
    """The record that engines, trainer and gateways go by. Writes are fenced by the epoch."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def become_leader(self, lineage_id: UUID) -> Leadership | None:
        """Lead a lineage in a new epoch; None where another trainer leads it."""
        return await Leadership.take(self._database, lineage_id)

    async def allocate_version(self, lineage_id: UUID, epoch: int) -> int:
        """A version number that was never given out before. Raises NotLeader."""
        version: int | None = await self._database.fetchval(_ALLOCATE, lineage_id, epoch)
        if version is None:
            raise NotLeader(f"epoch {epoch} of lineage {lineage_id} is over")
        return version

    async def advance(self, step: StepRecord) -> None:
        """Name a written checkpoint as a candidate and consume its samples, in one transaction.

        Raises NotLeader, and StoreError where a sample is not leased by this leader any more:
        then nothing has changed.
        """
        async with self._database.transaction() as connection:
            await hold_epoch(connection, step.lineage_id, step.epoch)
            await connection.execute(
                _ADD_POLICY,
                step.lineage_id,
                step.to_version,
                step.from_version,
                step.policy.kind.value,
                step.policy.uri,
                step.policy.checksum,
                step.checkpoint,
                step.id,
            )
            await connection.execute(
                _ADD_STEP,
                step.id,
                step.lineage_id,
                step.epoch,
                step.from_version,
                step.to_version,
                dict(step.metrics),
                step.started_at,
                step.ended_at,
            )
            rows = await connection.fetch(
                _CONSUME,
                step.lineage_id,
                step.epoch,
                step.id,
                list(step.sample_ids),
                list(step.lags),
            )
            if len(rows) != len(step.sample_ids):
                raise StoreError(
                    f"{len(step.sample_ids) - len(rows)} of {len(step.sample_ids)} samples are "
                    "not leased by this leader; the step is thrown away"
                )
            turn_ids = list({row["turn_id"] for row in rows})
            await put_trained(connection, turn_ids, step.id, step.to_version)

    async def promote(self, lineage_id: UUID, epoch: int, version: int) -> None:
        """Make a candidate the version that engines serve. Raises NotLeader, StoreError."""
        async with self._database.acquire() as connection:
            async with connection.transaction():
                await hold_epoch(connection, lineage_id, epoch)
                await connection.execute(_RETIRE, lineage_id, version)
                done = await connection.execute(_PROMOTE, lineage_id, version)
                if done != "UPDATE 1":
                    raise StoreError(f"version {version} cannot be promoted: it is no candidate")
                await connection.execute(_SET_LIVE, lineage_id, version)
                await _note(connection, "promoted", lineage_id, version)
            await connection.execute("SELECT pg_notify('nextstate_policy', $1)", lineage_id.hex)

    async def refuse(self, lineage_id: UUID, epoch: int, version: int, reason: str) -> None:
        """Set a candidate aside for good, with the reason. Raises NotLeader, StoreError."""
        async with self._database.transaction() as connection:
            await hold_epoch(connection, lineage_id, epoch)
            done = await connection.execute(_REFUSE, lineage_id, version, reason)
            if done != "UPDATE 1":
                raise StoreError(f"version {version} cannot be refused: it is no candidate")
            await _note(connection, "refused", lineage_id, version, reason=reason)

    async def live(self) -> dict[UUID, PolicyRef]:
        """The live version of every lineage."""
        rows = await self._database.fetch(_LIVE)
        return {row["lineage_id"]: _ref(row) for row in rows}

    async def live_of(self, lineage_id: UUID) -> PolicyRef:
        """Raises StoreError where there is no such lineage."""
        row = await self._database.fetchrow(f"{_LIVE} AND lineage_id = $1", lineage_id)
        if row is None:
            raise StoreError(f"there is no lineage {lineage_id}")
        return _ref(row)

    async def candidate_of(self, lineage_id: UUID) -> PolicyRef | None:
        """The newest version that was trained and neither promoted nor refused."""
        row = await self._database.fetchrow(_CANDIDATE, lineage_id)
        return None if row is None else _ref(row)

    async def checkpoint_of(self, lineage_id: UUID, version: int) -> str | None:
        """Where the trainer's own state of a version lies; None for the base model."""
        found: str | None = await self._database.fetchval(_CHECKPOINT, lineage_id, version)
        return found

    async def record_swap(self, swap: SwapRecord) -> None:
        await self._database.execute(
            _ADD_SWAP,
            new_id(),
            swap.lineage_id,
            swap.engine,
            swap.from_version,
            swap.to_version,
            swap.outcome,
            swap.detail,
            swap.load_ms,
            swap.pause_ms,
            swap.probe_max_diff,
            swap.started_at,
            swap.ended_at,
        )


async def _note(
    connection: asyncpg.Connection, name: str, lineage_id: UUID, version: int, **detail: Any
) -> None:
    what = {"lineage_id": str(lineage_id), "version": version, **detail}
    await connection.execute(_EVENT, name, what)


def _ref(row: asyncpg.Record) -> PolicyRef:
    return PolicyRef(
        lineage_id=row["lineage_id"],
        version=row["version"],
        kind=PolicyKind(row["kind"]),
        uri=row["uri"],
        checksum=row["checksum"],
    )
