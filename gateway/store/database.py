"""The pool of connections, and what is checked before it is used."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Self, cast

import asyncpg
import msgspec

from gateway.config import DatabaseSettings
from gateway.errors import RevisionMismatch, StoreError, StoreUnavailable
from gateway.store.away import AWAY, unavailable
from gateway.store.direct import DirectConnection
from gateway.store.lookups import Lookups
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: Every revision of `migrations/versions`, oldest first. This build runs on the last two.
REVISIONS = ("0001", "0002", "0003")

_MIN_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
#: How often a migration asks for a table that others use; each time takes some seconds.
_LOCK_TRIES = 10


class Database:
    """Connections of one process, by `open`.

    Its methods raise StoreUnavailable where Postgres is away; what Postgres itself refuses comes
    through as asyncpg's error.
    """

    def __init__(
        self, pool: asyncpg.Pool, url: str, settings: DatabaseSettings, application: str
    ) -> None:
        self.pool = pool
        self.settings = settings
        #: What the schema was at when it was last checked; an upgrade may follow.
        self.revision = REVISIONS[-1]
        self._url = url
        self._application = application
        self._tasks: set[asyncio.Task[None]] = set()
        self._lookups = Lookups(self.connect)
        #: `fetch` of a few rows by their keys, planned once and for good.
        self.look_up = self._lookups.fetch

    @classmethod
    async def open(cls, settings: DatabaseSettings, url: str, *, application: str) -> Self:
        """Connect. Raises StoreUnavailable, without the password in its message."""
        timeout = settings.command_timeout_s
        with unavailable():
            try:
                # No floor: asyncpg would go on about it while Postgres is away.
                pool = await asyncpg.create_pool(
                    url,
                    min_size=0,
                    max_size=settings.pool_size,
                    timeout=timeout,
                    command_timeout=timeout,
                    init=_codecs,
                    connection_class=DirectConnection,
                    reset=_nothing,
                    server_settings=_server_settings(settings, application),
                )
                assert pool is not None
                await pool.fetchval("SELECT 1")
            except (asyncpg.InvalidAuthorizationSpecificationError, ValueError) as error:
                raise StoreError(f"Postgres refuses the connection: {error}") from None
            except asyncpg.InvalidCatalogNameError as error:
                raise StoreError(f"Postgres: {error}") from None
        return cls(pool, url, settings, application)

    async def close(self) -> None:
        """Give every connection back; one that hangs is cut off."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lookups.close()
        try:
            await asyncio.wait_for(self.pool.close(), self.settings.command_timeout_s)
        except AWAY:
            self.pool.terminate()

    async def connect(self, **settings: str) -> DirectConnection:
        """A connection outside the pool, for one that is held for long, with its own settings."""
        with unavailable():
            connection = await asyncpg.connect(
                self._url,
                timeout=self.settings.command_timeout_s,
                command_timeout=self.settings.command_timeout_s,
                server_settings=_server_settings(self.settings, self._application) | settings,
                connection_class=DirectConnection,
            )
            await _codecs(connection)
        return connection

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[asyncpg.Connection]:
        """A pooled connection."""
        with unavailable():
            async with self.pool.acquire(timeout=self.settings.command_timeout_s) as connection:
                try:
                    yield cast("asyncpg.Connection", connection)
                except TimeoutError:
                    # Giving it back would wait for the server's word, which may never come.
                    connection.terminate()
                    raise

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        """A pooled connection in a transaction."""
        async with self.acquire() as connection, connection.transaction():
            yield connection

    async def fetch(
        self, sql: str, *values: object, timeout_s: float | None = None
    ) -> list[asyncpg.Record]:
        async with self.acquire() as connection:
            return await connection.fetch(sql, *values, timeout=timeout_s)

    async def fetchrow(
        self, sql: str, *values: object, timeout_s: float | None = None
    ) -> asyncpg.Record | None:
        async with self.acquire() as connection:
            return await connection.fetchrow(sql, *values, timeout=timeout_s)

    async def fetchval(self, sql: str, *values: object, timeout_s: float | None = None) -> Any:
        async with self.acquire() as connection:
            return await connection.fetchval(sql, *values, timeout=timeout_s)

    async def execute(self, sql: str, *values: object) -> str:
        async with self.acquire() as connection:
            return await connection.execute(sql, *values)

    async def check_revision(self, *, newest: bool = False) -> None:
        """Raises RevisionMismatch where this build cannot run on the schema.

        Gateways run on the revision before their own too, so that upgrades roll; workers, which
        may wait, ask for the `newest`.
        """
        try:
            found = await self.fetchval("SELECT version_num FROM alembic_version")
        except asyncpg.UndefinedTableError:
            found = None
        if found is None:
            raise RevisionMismatch("the database has no tables yet: run `nextstate migrate`")
        if found not in REVISIONS[-1 if newest else -2 :]:
            what = (
                "run `nextstate migrate`"
                if found in REVISIONS
                else "install the release that migrated it"
            )
            raise RevisionMismatch(
                f"the database is at revision {found} and this build needs {REVISIONS[-1]}: {what}"
            )
        self.revision = found

    async def listen(self, channel: str, callback: Callable[[str], None]) -> None:
        """Call back with the payload of every notification until `close`.

        A lost connection is made again, waiting longer each time; then `callback("")` is called,
        because notifications may have been missed.
        """
        listening = asyncio.Event()
        self.spawn(self._listen(channel, callback, listening))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(listening.wait(), self.settings.command_timeout_s)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run what goes on until `close`, which cancels it, on nobody's behalf."""
        self._tasks.add(asyncio.create_task(work, context=contextvars.Context()))

    async def _listen(
        self, channel: str, callback: Callable[[str], None], listening: asyncio.Event
    ) -> None:
        backoff_s = _MIN_BACKOFF_S
        while True:
            lost = asyncio.Event()
            try:
                connection = await self.connect()
            except StoreUnavailable:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
                continue
            backoff_s = _MIN_BACKOFF_S
            try:
                connection.add_termination_listener(lambda *_, lost=lost: lost.set())
                await connection.add_listener(channel, lambda *event: callback(str(event[3])))
                if listening.is_set():
                    callback("")
                listening.set()
                await lost.wait()
                log.warning("listener_lost", channel=channel)
            except AWAY as error:
                log.warning("listener_lost", channel=channel, error=type(error).__name__)
            finally:
                connection.terminate()
            await asyncio.sleep(_MIN_BACKOFF_S)


async def migrate(url: str) -> None:
    """Bring the schema to this build's revision; nothing to do where it is there.

    Others may go on meanwhile: a table that is in use is asked for again and again. Raises
    StoreUnavailable, and StoreError where a table stays in use.
    """
    from alembic import command
    from alembic.config import Config

    import migrations

    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__path__[0])).replace("%", "%%"))
    config.attributes["url"] = url
    with unavailable():
        for _ in range(_LOCK_TRIES):
            try:
                return await asyncio.to_thread(command.upgrade, config, "head")
            except Exception as error:
                if not _in_use(error):
                    raise
                log.warning("migration_waits", reason="a table is in use")
                await asyncio.sleep(_MAX_BACKOFF_S / 5)
    raise StoreError(
        "the migration found a table in use and went no further: end what holds it "
        "(see pg_stat_activity for old transactions) and run it again"
    )


def _in_use(error: Exception) -> bool:
    """Whether a lock was not had in time; SQLAlchemy's error carries that of asyncpg."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, asyncpg.LockNotAvailableError):
            return True
        cause = cause.__cause__
    return False


def _server_settings(settings: DatabaseSettings, application: str) -> dict[str, str]:
    limit = str(int(settings.command_timeout_s * 1000))
    return {
        "application_name": application,
        "statement_timeout": limit,
        "idle_in_transaction_session_timeout": str(2 * int(limit)),
    }


async def _nothing(_: asyncpg.Connection) -> None:
    """Pooled connections are left as they were found, which spares a round trip each time."""


async def _codecs(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: b"\x01" + msgspec.json.encode(value),
        decoder=lambda data: msgspec.json.decode(data[1:]),
        format="binary",
    )


def seconds(column: str) -> str:
    """SQL for a timestamp as seconds since the epoch."""
    return f"extract(epoch FROM {column})::float8"


__all__: Sequence[str] = ("AWAY", "REVISIONS", "Database", "migrate", "seconds", "unavailable")
