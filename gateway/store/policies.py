"""Versions of a lineage: named here before any engine is given them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from gateway.errors import NotLeader, StoreError
from gateway.records import (
    StepRecord,
    SwapRecord,
    new_id,
)
from gateway.store.fence import hold_epoch
from gateway.store.leadership import Leadership
from gateway.store.policy_reads import PolicyReads
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
UPDATE policies SET state = 'live', live_at = coalesce(live_at, now()), ended_at = NULL,
    gate = coalesce($3, gate)
WHERE lineage_id = $1 AND version = $2 AND state IN ('candidate', 'canary', 'live')
"""

_SET_LIVE = """
UPDATE lineages SET live_version = $2, canary_version = NULL, canary_share = 0
WHERE id = $1 AND coalesce(pinned_version, $2) = $2
"""

_TRY = """
UPDATE policies SET state = 'canary', live_at = coalesce(live_at, now()),
    gate = coalesce(CASE WHEN state = 'canary' THEN gate END, $3)
WHERE lineage_id = $1 AND version = $2 AND state IN ('candidate', 'canary')
"""

_SET_CANARY = "UPDATE lineages SET canary_version = $2, canary_share = $3 WHERE id = $1"

_NOTE_GATE = "UPDATE policies SET gate = $3 WHERE lineage_id = $1 AND version = $2"

_FORGET = """
UPDATE policies SET checkpoint = NULL WHERE lineage_id = $1 AND version = ANY($2::int8[])
"""

_REFUSE = """
UPDATE policies SET state = 'refused', reason = $3, ended_at = now()
WHERE lineage_id = $1 AND version = $2 AND state IN ('candidate', 'canary')
"""

_NO_CANARY = """
UPDATE lineages SET canary_version = NULL, canary_share = 0 WHERE id = $1 AND canary_version = $2
"""

_EVENT = "INSERT INTO events (name, detail) VALUES ($1, $2)"

_ADD_SWAP = """
INSERT INTO swaps (id, lineage_id, engine, from_version, to_version, outcome, detail, load_ms,
    pause_ms, probe_max_diff, started_at, ended_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, to_timestamp($11), to_timestamp($12))
"""


class PolicyStore(PolicyReads):
    """The record that engines, trainer and gateways go by. Writes are fenced by the epoch."""

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
            # There is room for new sessions: gateways hear it when this is committed.
            await connection.execute(
                "SELECT pg_notify('nextstate_policy', $1)", step.lineage_id.hex
            )

    async def promote(
        self,
        lineage_id: UUID,
        epoch: int,
        version: int,
        gate: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a candidate or canary the version that engines serve, and note its gate.

        Raises NotLeader, and StoreError where it is neither, or where another is pinned.
        """
        async with self._database.acquire() as connection:
            async with connection.transaction():
                await hold_epoch(connection, lineage_id, epoch)
                await connection.execute(_RETIRE, lineage_id, version)
                done = await connection.execute(_PROMOTE, lineage_id, version, gate)
                if done != "UPDATE 1":
                    raise StoreError(f"version {version} cannot be promoted: it is no candidate")
                if await connection.execute(_SET_LIVE, lineage_id, version) != "UPDATE 1":
                    raise StoreError(f"version {version} cannot be promoted: another is pinned")
                await note(connection, "promoted", lineage_id, version, gate=gate)
            await tell(connection, lineage_id)

    async def try_out(
        self, lineage_id: UUID, epoch: int, version: int, share: float, gate: Mapping[str, Any]
    ) -> None:
        """Have a share of sessions served by a candidate. One that is tried already keeps its gate.

        Raises NotLeader, StoreError.
        """
        async with self._database.acquire() as connection:
            async with connection.transaction():
                await hold_epoch(connection, lineage_id, epoch)
                done = await connection.execute(_TRY, lineage_id, version, gate)
                if done != "UPDATE 1":
                    raise StoreError(f"version {version} cannot be tried: it is no candidate")
                await connection.execute(_SET_CANARY, lineage_id, version, share)
                await note(connection, "canary", lineage_id, version, share=share)
            await tell(connection, lineage_id)

    async def note_gate(
        self, lineage_id: UUID, epoch: int, version: int, gate: Mapping[str, Any]
    ) -> None:
        """Keep how far a version's gate has come. Raises NotLeader."""
        async with self._database.transaction() as connection:
            await hold_epoch(connection, lineage_id, epoch)
            await connection.execute(_NOTE_GATE, lineage_id, version, gate)

    async def forget_files(self, lineage_id: UUID, versions: Sequence[int]) -> None:
        """Note that versions' files are gone: nobody can go back to them."""
        await self._database.execute(_FORGET, lineage_id, list(versions))

    async def refuse(self, lineage_id: UUID, epoch: int, version: int, reason: str) -> None:
        """Set a candidate aside for good, with the reason. Raises NotLeader, StoreError."""
        async with self._database.transaction() as connection:
            await hold_epoch(connection, lineage_id, epoch)
            done = await connection.execute(_REFUSE, lineage_id, version, reason)
            if done != "UPDATE 1":
                raise StoreError(f"version {version} cannot be refused: it is no candidate")
            await connection.execute(_NO_CANARY, lineage_id, version)
            await note(connection, "refused", lineage_id, version, reason=reason)

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


async def tell(connection: asyncpg.Connection, lineage_id: UUID) -> None:
    """Let gateways and trainers know that what is to be served has changed."""
    await connection.execute("SELECT pg_notify('nextstate_policy', $1)", lineage_id.hex)


async def note(
    connection: asyncpg.Connection, name: str, lineage_id: UUID, version: int, **detail: Any
) -> None:
    what = {"lineage_id": str(lineage_id), "version": version, **detail}
    await connection.execute(_EVENT, name, what)
