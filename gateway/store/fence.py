"""Only the leader of a lineage's current epoch may write."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from gateway.errors import NotLeader

# Held until the transaction ends: no other trainer can become the leader in the middle of it.
_HOLD = "SELECT FROM lineages WHERE id = $1 AND epoch = $2 FOR NO KEY UPDATE"


async def hold_epoch(connection: asyncpg.Connection, lineage_id: UUID, epoch: int) -> None:
    """Keep the epoch as it is for the rest of the transaction. Raises NotLeader."""
    if await connection.fetchrow(_HOLD, lineage_id, epoch) is None:
        raise NotLeader(f"epoch {epoch} of lineage {lineage_id} is over")
