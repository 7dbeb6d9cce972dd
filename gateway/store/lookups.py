"""Connections for statements that find a few rows by their keys, which is what serving asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg

#: Indexes are used whatever statistics say, and a statement is planned once a connection: a plan
#: that suited empty tables would otherwise read all of a full one.
PLANNER = {
    **dict.fromkeys(("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit"), "off"),
    "plan_cache_mode": "force_generic_plan",
}

_SIZE = 4


class Lookups:
    """A few connections, lent for one query each. `connect` makes one with settings."""

    def __init__(self, connect: Callable[..., Awaitable[asyncpg.Connection]]) -> None:
        self._connect = connect
        self._idle: list[asyncpg.Connection] = []
        self._room = asyncio.Semaphore(_SIZE)

    async def fetch(self, sql: str, *values: object, timeout_s: float) -> list[asyncpg.Record]:
        """Rows, within a time that includes the wait for a connection.

        Raises StoreUnavailable where none can be made, and what asyncpg raises.
        """
        if self._room.locked() or not self._idle or self._idle[-1].is_closed():
            async with asyncio.timeout(timeout_s), self._room:
                return await self._fetch(sql, values, timeout_s)
        # Nothing is waited for but the answer, which asyncpg watches for less.
        async with self._room:
            return await self._fetch(sql, values, timeout_s)

    async def _fetch(
        self, sql: str, values: tuple[object, ...], timeout_s: float
    ) -> list[asyncpg.Record]:
        connection = await self._lent()
        try:
            rows: list[asyncpg.Record] = await connection.fetch(sql, *values, timeout=timeout_s)
        except asyncpg.PostgresError:
            self._idle.append(connection)
            raise
        except BaseException:
            # Cut off in the middle, by time or a caller: what comes next is not for others.
            connection.terminate()
            raise
        self._idle.append(connection)
        return rows

    def close(self) -> None:
        while self._idle:
            self._idle.pop().terminate()

    async def _lent(self) -> asyncpg.Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await self._connect(**PLANNER)
