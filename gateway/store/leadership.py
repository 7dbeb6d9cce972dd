"""One trainer leads a lineage: it alone holds the lock, and its epoch fences what it writes."""

from __future__ import annotations

import contextlib
from hashlib import blake2b
from typing import Self
from uuid import UUID

import asyncpg

from gateway.errors import StoreError
from gateway.store.database import AWAY, Database, unavailable

_NEXT_EPOCH = "UPDATE lineages SET epoch = epoch + 1 WHERE id = $1 RETURNING epoch"
_EPOCH = "SELECT epoch FROM lineages WHERE id = $1"


class Leadership:
    """Held by a connection of its own: a leader that dies gives way at once.

    A leader that is cut off is not told. What it writes is refused, because the next one has
    raised the epoch.
    """

    def __init__(self, connection: asyncpg.Connection, lineage_id: UUID, epoch: int) -> None:
        self._connection = connection
        self._lineage_id = lineage_id
        self.epoch = epoch

    @classmethod
    async def take(cls, database: Database, lineage_id: UUID) -> Self | None:
        """Lead, or None where another does. Raises StoreUnavailable, StoreError."""
        connection = await database.connect()
        try:
            with unavailable():
                if not await connection.fetchval(
                    "SELECT pg_try_advisory_lock($1)", _key(lineage_id)
                ):
                    connection.terminate()
                    return None
                epoch = await connection.fetchval(_NEXT_EPOCH, lineage_id)
        except BaseException:
            connection.terminate()
            raise
        if epoch is None:
            connection.terminate()
            raise StoreError(f"there is no lineage {lineage_id}")
        return cls(connection, lineage_id, epoch)

    async def still_leader(self) -> bool:
        """Whether the lock is held and no other epoch has begun."""
        try:
            epoch = await self._connection.fetchval(_EPOCH, self._lineage_id)
        except AWAY:
            self._connection.terminate()
            return False
        return bool(epoch == self.epoch)

    async def release(self) -> None:
        with contextlib.suppress(*AWAY):
            await self._connection.close(timeout=5)
        self._connection.terminate()


def _key(lineage_id: UUID) -> int:
    """The lock's 64-bit number."""
    named = blake2b(b"nextstate leader" + lineage_id.bytes, digest_size=8).digest()
    return int.from_bytes(named, "big", signed=True)
