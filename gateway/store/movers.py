"""Turns at replacing an engine's weights, as advisory locks: a process that dies gives way."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Collection
from hashlib import blake2b

import asyncpg

from gateway.errors import StoreUnavailable
from gateway.store.database import AWAY, Database, unavailable
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: The first half of the locks' numbers; no other lock has two halves.
_CLASS = int.from_bytes(b"move", "big")
_ASK_AGAIN_S = 0.05
#: Less than gateways take to see that a turn is free, and to act on it.
_RETAKE_S = 0.2

_TAKEN = """
SELECT objid::int8 AS engine FROM pg_locks
WHERE locktype = 'advisory' AND classid = $1::int8::oid AND objsubid = 2 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

# An empty lineage: whoever hears it looks at all.
_TELL = "SELECT pg_notify('nextstate_policy', '')"


class EngineMovers:
    """See `gateway.engine.movers.Movers`.

    Where Postgres is away nobody is told to move anything, so a turn is given without it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextlib.asynccontextmanager
    async def turn(self, engine: str, wait_s: float = 0.0) -> AsyncIterator[bool]:
        """Take the turn, waiting at most `wait_s` for whoever has it; false where it is taken.

        A turn whose connection is lost is taken again at once: what runs in it does not end.
        """
        held: list[asyncpg.Connection] = []
        keeper: asyncio.Task[None] | None = None
        try:
            try:
                held.append(await self._database.connect())
                mine = await _taken(held[0], _key(engine), wait_s)
            except StoreUnavailable as error:
                log.warning("engine_turn_without_store", engine=engine, error=error.message)
                mine = True
            if mine:
                keeper = asyncio.create_task(self._kept(engine, held), name=f"turn at {engine}")
            yield mine
        finally:
            if keeper is not None:
                keeper.cancel()
                await asyncio.wait([keeper])
            for connection in held:
                await _given_up(connection)

    async def _kept(self, engine: str, held: list[asyncpg.Connection]) -> None:
        """Take a turn again, until cancelled, whenever its one connection in `held` is lost."""
        while True:
            for connection in held:
                lost = asyncio.Event()
                connection.add_termination_listener(lambda *_, lost=lost: lost.set())
                if not connection.is_closed():
                    await lost.wait()
                log.warning("engine_turn_lost", engine=engine)
            held.clear()
            try:
                held.append(await self._database.connect())
                await _taken(held[0], _key(engine), math.inf)
            except (StoreUnavailable, asyncpg.PostgresError):
                await asyncio.sleep(_RETAKE_S)

    async def under_way(self, engines: Collection[str]) -> frozenset[str]:
        """Raises StoreUnavailable."""
        rows = await self._database.fetch(_TAKEN, _CLASS)
        taken = {row["engine"] for row in rows}
        return frozenset(name for name in engines if _key(name) in taken)


async def _taken(connection: asyncpg.Connection, key: int, wait_s: float) -> bool:
    """Raises StoreUnavailable."""
    clock = asyncio.get_running_loop().time
    until = clock() + wait_s
    with unavailable():
        while not await connection.fetchval(
            "SELECT pg_try_advisory_lock($1::int4, $2::int4)", _CLASS, key
        ):
            if clock() >= until:
                return False
            await asyncio.sleep(_ASK_AGAIN_S)
        # New requests go elsewhere, or wait, from now on.
        await connection.execute(_TELL)
    return True


async def _given_up(connection: asyncpg.Connection) -> None:
    """End the turn, and let everybody know."""
    with contextlib.suppress(*AWAY):
        await connection.execute("SELECT pg_advisory_unlock_all()")
        await connection.execute(_TELL)
        await connection.close(timeout=5)
    connection.terminate()


def _key(engine: str) -> int:
    """The second half of a lock's number, at least 0."""
    return int.from_bytes(blake2b(engine.encode(), digest_size=4).digest(), "big") >> 1
