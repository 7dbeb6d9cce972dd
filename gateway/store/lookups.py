"""Connections for statements that find a few rows by their keys, which is what serving asks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import asyncpg

from gateway.store.away import AWAY, unreachable
from gateway.store.direct import DirectConnection

#: Indexes are used whatever statistics say, and a statement is planned once a connection: a plan
#: that suited empty tables would otherwise read all of a full one.
PLANNER = {
    **dict.fromkeys(("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit"), "off"),
    "plan_cache_mode": "force_generic_plan",
}

_SIZE = 4

#: A place for a connection: None while there is none, or none that is of any use.
_Place = DirectConnection | None


class Lookups:
    """A few connections, lent for one query each. `connect` makes one with settings."""

    def __init__(self, connect: Callable[..., Awaitable[DirectConnection]]) -> None:
        self._connect = connect
        #: What nobody has, the one that was used last at the end.
        self._free: list[_Place] = [None] * _SIZE
        self._waiting: deque[asyncio.Future[_Place]] = deque()

    async def fetch(self, sql: str, *values: object, timeout_s: float) -> list[asyncpg.Record]:
        """Rows, within a time that includes the wait for a connection.

        Raises StoreUnavailable where Postgres is away, and as asyncpg's error what it refuses.
        """
        try:
            connection = self._free[-1] if self._free else None
            if connection is not None and not connection.is_closed():
                # Nothing is waited for but the answer, which asyncpg watches for less.
                self._free.pop()
            else:
                loop = asyncio.get_running_loop()
                until = loop.time() + timeout_s
                async with asyncio.timeout_at(until):
                    connection = await self._lent()
                timeout_s = until - loop.time()
            place: _Place = connection
            try:
                return await connection.ask(sql, *values, timeout_s=timeout_s)
            except asyncpg.PostgresError:
                raise
            except BaseException:
                # Cut off in the middle, by time or a caller: what comes next is not for others.
                connection.terminate()
                place = None
                raise
            finally:
                self._give_back(place)
        except AWAY as error:
            raise unreachable(error) from error

    def close(self) -> None:
        free, self._free = self._free, [None] * len(self._free)
        for connection in free:
            if connection is not None:
                connection.terminate()

    async def _lent(self) -> DirectConnection:
        """A connection for whoever is next, made where there is none."""
        place = self._free.pop() if self._free else await self._turn()
        if place is not None and not place.is_closed():
            return place
        try:
            return await self._connect(**PLANNER)
        except BaseException:
            self._give_back(None)
            raise

    async def _turn(self) -> _Place:
        """The place that is given back next, in the order of asking."""
        place: asyncio.Future[_Place] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give_back(place.result())
            raise

    def _give_back(self, place: _Place) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(place)
                return
        if place is None:
            self._free.insert(0, None)
        else:
            self._free.append(place)
