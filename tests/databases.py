"""Databases for tests, each migrated and empty, made ready beside the tests.

To clone a database is to copy nearly a thousand files, most of them the catalogue's. One that a
test is done with is emptied instead and given to another test under a new name, so that nobody
who was left behind finds it; whatever else than rows was changed in it, it is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

T = TypeVar("T")

#: Equal as long as nothing was defined, altered, dropped or analysed.
_SHAPE = """
SELECT md5(concat_ws('|',
 (SELECT string_agg(concat_ws(' ', oid, relname, relkind, relpersistence, relowner, relacl,
                              reloptions), ',' ORDER BY oid)
    FROM pg_class WHERE relnamespace = 'public'::regnamespace),
 (SELECT string_agg(concat_ws(' ', attrelid, attnum, xmin), ',' ORDER BY attrelid, attnum)
    FROM pg_attribute WHERE attrelid >= 16384),
 (SELECT string_agg(concat_ws(' ', oid, xmin), ',' ORDER BY oid) FROM pg_attrdef),
 (SELECT string_agg(concat_ws(' ', oid, xmin), ',' ORDER BY oid) FROM pg_constraint),
 (SELECT string_agg(concat_ws(' ', indexrelid, xmin), ',' ORDER BY indexrelid)
    FROM pg_index WHERE indexrelid >= 16384),
 (SELECT string_agg(concat_ws(' ', oid, xmin), ',' ORDER BY oid) FROM pg_trigger),
 (SELECT string_agg(oid::text, ',' ORDER BY oid) FROM pg_proc WHERE oid >= 16384),
 (SELECT string_agg(oid::text, ',' ORDER BY oid) FROM pg_namespace WHERE oid >= 16384),
 (SELECT string_agg(oid::text, ',' ORDER BY oid) FROM pg_extension),
 (SELECT count(*) FROM pg_statistic WHERE starelid >= 16384),
 (SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
   WHERE d.datname = current_database()),
 (SELECT string_agg(version_num, ',') FROM alembic_version)
))
"""

#: Tables that hold rows, or did, or whose size was counted.
_TOUCHED = """
SELECT relname FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'alembic_version'
  AND (pg_relation_size(oid) > 0 OR reltuples <> -1)
"""

_LEAVE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"


def on_database(url: str, name: str) -> str:
    """The same server's URL with another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


class Databases:
    """Used from one thread; what it asks of the server, it asks in another."""

    def __init__(self, url: str, template: str, *, prefix: str = "test", ahead: int = 2) -> None:
        self._url, self._template, self._prefix = url, template, prefix
        self._made = 0
        self._shape: str | None = None
        self._admin: asyncpg.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "databases")
        self._runner = asyncio.Runner()
        self._ready = deque(self._begun(self._new, template) for _ in range(ahead))

    async def take(self) -> str:
        """The URL of a migrated database without rows."""
        ready = self._ready.popleft() if self._ready else self._begun(self._new, self._template)
        return on_database(self._url, await asyncio.wrap_future(ready))

    def give_back(self, url: str) -> None:
        self._ready.append(self._begun(self._again, _name(url)))

    async def take_bare(self) -> str:
        """The URL of a database without tables."""
        return on_database(
            self._url, await asyncio.wrap_future(self._begun(self._new, "template0"))
        )

    def give_back_bare(self, url: str) -> None:
        self._begun(self._drop, _name(url))

    def close(self) -> None:
        for future in self._ready:
            future.cancel()
        self._begun(self._leave).result()
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def _begun(self, work: Callable[..., Coroutine[None, None, T]], *arguments: str) -> Future[T]:
        return self._thread.submit(lambda: self._runner.run(work(*arguments)))

    async def _server(self) -> asyncpg.Connection:
        if self._admin is None:
            self._admin = await asyncpg.connect(self._url)
            self._shape = await self._shape_of(self._template)
        return self._admin

    async def _leave(self) -> None:
        if self._admin is not None:
            await self._admin.close()

    def _next_name(self) -> str:
        self._made += 1
        return f"{self._prefix}_{self._made}"

    async def _new(self, template: str) -> str:
        name = self._next_name()
        server = await self._server()
        await server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    async def _drop(self, name: str) -> None:
        server = await self._server()
        await server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    async def _again(self, name: str) -> str:
        server, fresh = await self._server(), self._next_name()
        try:
            await server.fetch(_LEAVE, name)
            await server.execute(f"ALTER DATABASE {name} RENAME TO {fresh}")
            if await self._emptied(fresh):
                return fresh
        except asyncpg.PostgresError:
            await self._drop(name)
        await self._drop(fresh)
        return await self._new(self._template)

    async def _shape_of(self, name: str) -> str:
        connection = await asyncpg.connect(on_database(self._url, name))
        try:
            return str(await connection.fetchval(_SHAPE))
        finally:
            await connection.close()

    async def _emptied(self, name: str) -> bool:
        """Whether nothing but rows was changed, and those are gone."""
        connection = await asyncpg.connect(on_database(self._url, name))
        try:
            if await connection.fetchval(_SHAPE) != self._shape:
                return False
            if touched := [row["relname"] for row in await connection.fetch(_TOUCHED)]:
                await connection.execute(f"TRUNCATE {', '.join(touched)} RESTART IDENTITY CASCADE")
            return True
        finally:
            await connection.close()


def _name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")
