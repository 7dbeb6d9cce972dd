"""Group commit, and what happens while Postgres is away.

One task takes whatever is queued, writes it in one statement and looks again: an idle system
pays one round trip a turn, a busy one a fraction of one. After a commit of several calls the next
one begins `_TOGETHER_S` later at the earliest: they come together, and so will those that are on
their way. A batch that Postgres cannot take in time goes to the spool, and so does everything
after it until the spool drains again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Self

import asyncpg

from gateway.errors import StoreError, StoreUnavailable
from gateway.store.away import AWAY
from gateway.store.batch import Apart, store, store_at_once
from gateway.store.calls import Call
from gateway.store.database import Database
from gateway.store.direct import DirectConnection
from gateway.store.erasures import erased_among, not_erased
from gateway.store.expiry import take_marks_back
from gateway.store.frames import Storable, decode, encode
from gateway.store.lookups import PLANNER
from gateway.store.spool import Spool
from gateway.telemetry import get_logger

log = get_logger(__name__)

_BATCH_CALLS = 64
_BATCH_BYTES = 8 * 1024 * 1024
#: From one commit of several calls to the next. Small turns cost this process a tenth less then
#: and Postgres a third, and nothing but the end of a reply waits for it.
_TOGETHER_S = 0.004
_MIN_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
_TRIES = 3
#: Between two wake-ups of the judges: each takes a lock of the whole cluster.
_NOTIFY_S = 0.05
_NOTIFY = "SELECT pg_notify('nextstate_judge', '')"

#: Postgres will refuse these rows however often they are sent.
_BAD = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)


class TurnWriter:
    """Makes turns durable, by `open`. One instance a process."""

    def __init__(self, database: Database) -> None:
        settings = database.settings
        self._database = database
        self._timeout_s = settings.commit_timeout_s
        self._spool = Spool(settings.spool, max_bytes=settings.spool_bytes)
        self._queue: deque[Call] = deque()
        #: What the writing waits for while nothing is queued.
        self._idle: asyncio.Future[None] | None = None
        #: Calls that went to the spool since the start.
        self.spooled = 0
        self._away = False
        self._pending = asyncio.Event()
        self._queued = asyncio.Event()
        self._closing = False
        # Asked for each time, it costs a system call.
        self._loop = asyncio.get_running_loop()
        self._connection: DirectConnection | None = None
        #: By the loop's clock, when the next calls are taken at the earliest.
        self._next_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, database: Database) -> Self:
        """Start writing, and drain what an earlier process left in the spool."""
        writer = cls(database)
        if writer._spool.waiting():
            writer._pending.set()
        writer._tasks = [
            asyncio.create_task(writer._write_on(), name="turn writer"),
            asyncio.create_task(writer._drain_on(), name="spool drain"),
            asyncio.create_task(writer._notify_on(), name="judge notifier"),
        ]
        return writer

    @property
    def spooling(self) -> bool:
        """Whether Postgres is away and turns go to the spool."""
        return self._away

    async def commit(self, *records: Storable) -> bool:
        """Store records together; returns once they are durable, and whether in Postgres.

        If not there, they are in the spool. Raises StoreError for records that Postgres refuses,
        StoreUnavailable where the spool cannot take them either.
        """
        if self._closing:
            raise StoreUnavailable("the writer is closed")
        done: asyncio.Future[bool] = self._loop.create_future()
        self._queue.append(Call(records, done))
        self._wake()
        return await done

    async def drop_erased(self) -> None:
        """Take what was erased out of what was set aside. Raises nothing for an outage."""
        payloads = await asyncio.to_thread(self._spool.rejected)
        if not payloads or self._database.revision < "0003":
            return
        try:
            async with self._database.acquire() as connection:
                gone = await erased_among(connection, [_records(one) for one in payloads])
        except StoreError as error:
            log.warning("rejected_not_looked_through", error=error.message)
            return
        kept = [one for one, is_gone in zip(payloads, gone, strict=True) if not is_gone]
        if len(kept) < len(payloads):
            await asyncio.to_thread(self._spool.keep_rejected, kept, len(payloads))

    async def close(self) -> None:
        """Write what is queued. What is spooled stays there for the next start."""
        self._closing = True
        self._wake()
        if self._tasks:
            writing, *others = self._tasks
            await writing
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            if self._queued.is_set():
                await self._notify()
        self._spool.close()
        if self._connection is not None:
            with contextlib.suppress(*AWAY):
                await self._connection.close(timeout=self._timeout_s)
            self._disconnect()

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def _write_on(self) -> None:
        while True:
            if self._queue:
                await self._gather()
                calls = self._take()
                try:
                    await self._make_durable(calls)
                except Exception as error:
                    # Whatever it was, it must end neither the task nor a caller's wait, and what
                    # it left open on the connection must not be committed.
                    self._disconnect()
                    log.exception("writer_failed", calls=len(calls))
                    for call in calls:
                        if not call.settled:
                            call.settle(StoreError(f"the turn was not stored: {named(error)}"))
            elif self._closing:
                return
            else:
                self._idle = self._loop.create_future()
                await self._idle

    async def _gather(self) -> None:
        """Let what comes together come, unless there is a batch of it or the writer closes."""
        if self._closing or len(self._queue) >= _BATCH_CALLS:
            return
        if (rest := self._next_at - self._loop.time()) > 0:
            await asyncio.sleep(rest)

    def _take(self) -> list[Call]:
        calls: list[Call] = []
        size = 0
        while self._queue and len(calls) < _BATCH_CALLS and size < _BATCH_BYTES:
            call = self._queue.popleft()
            calls.append(call)
            size += call.size
        if len(calls) > 1:
            self._next_at = self._loop.time() + _TOGETHER_S
        return calls

    async def _make_durable(self, calls: Sequence[Call]) -> None:
        """Settle every call, within the commit time-out and an fsync."""
        if not self._away:
            deadline = self._loop.time() + self._timeout_s
            try:
                connection = self._connection
                if connection is None or connection.is_closed():
                    connection = await self._connect(deadline)
                if await write(connection, calls, self._database.revision, deadline):
                    self._queued.set()
            except (StoreUnavailable, asyncpg.PostgresError, *AWAY) as error:
                self._disconnect()
                self._away = True
                self._pending.set()
                log.warning("postgres_away", error=named(error))
            else:
                return
        await self._set_aside([call for call in calls if not call.settled])

    async def _connect(self, deadline: float) -> DirectConnection:
        async with asyncio.timeout_at(deadline):
            self._connection = await self._database.connect(**PLANNER)
        return self._connection

    async def _set_aside(self, waiting: Sequence[Call]) -> None:
        """Settle calls that Postgres did not take: they are in the spool, or nowhere."""
        if not waiting:
            return
        try:
            payloads = [encode(call.records) for call in waiting]
            await asyncio.to_thread(self._spool.append, payloads)
        except StoreUnavailable as error:
            log.error(  # noqa: TRY400 - the message says it all
                "turns_not_durable", calls=len(waiting), error=error.message
            )
            for call in waiting:
                call.settle(error)
        else:
            self.spooled += len(waiting)
            for call in waiting:
                call.settle(spooled=True)
            self._pending.set()

    async def _notify_on(self) -> None:
        """Wake judges, beside the writing; those that hear nothing look for themselves."""
        while True:
            await self._queued.wait()
            await self._notify()
            await asyncio.sleep(_NOTIFY_S)

    async def _notify(self) -> None:
        self._queued.clear()
        try:
            await self._database.execute(_NOTIFY)
        except (StoreError, asyncpg.PostgresError) as error:
            log.debug("judge_not_notified", error=named(error))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _drain_on(self) -> None:
        backoff_s = _MIN_BACKOFF_S
        while True:
            await self._pending.wait()
            self._pending.clear()
            try:
                await self._drain()
            except (StoreError, asyncpg.PostgresError, *AWAY) as error:
                log.debug("spool_waits", error=named(error))
                self._pending.set()
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
            else:
                backoff_s = _MIN_BACKOFF_S

    async def _drain(self) -> None:
        """Replay the spool in order, on a connection of its own; new turns pass it by."""
        connection = await self._database.connect(**PLANNER)
        try:
            # Not only up, but with the tables there.
            await connection.execute("SELECT FROM turns LIMIT 0")
            replayed = 0
            for segment in await asyncio.to_thread(self._spool.segments):
                with self._spool.draining(segment) as payloads:
                    for start in range(0, len(payloads), _BATCH_CALLS):
                        await self._replay(connection, payloads[start : start + _BATCH_CALLS])
                replayed += len(payloads)
                self._away = False
            self._away = False
            self._queued.set()
            log.info("spool_drained", calls=replayed)
        finally:
            connection.terminate()

    async def _replay(self, connection: DirectConnection, payloads: Sequence[bytes]) -> None:
        calls: list[Call] = []
        for payload in payloads:
            try:
                calls.append(Call(decode(payload)))
            except StoreError as error:
                log.error("spooled_turn_unreadable", error=error.message)  # noqa: TRY400
                self._spool.reject(payload)
        revision = self._database.revision
        if revision > "0002":
            calls = await not_erased(connection, calls)
        await write(connection, calls, revision)
        if revision > "0002":
            # Once they are there: a pass that is under way has seen them or is told of them.
            await take_marks_back(connection, [turn for call in calls for turn, _ in call.turns])
        for call in calls:
            if call.error is not None:
                log.error("spooled_turn_refused", error=call.error.message)
                self._spool.reject(encode(call.records))


def _records(payload: bytes) -> tuple[Storable, ...]:
    """What a payload of the spool holds; nothing where it cannot be read."""
    try:
        return decode(payload)
    except StoreError:
        return ()


async def write(
    connection: DirectConnection,
    calls: Sequence[Call],
    revision: str,
    deadline: float | None = None,
) -> bool:
    """One statement for all calls; where a row is refused, one for each, and it fails alone.

    `revision` is the schema's; by the loop's clock, nothing goes on past the `deadline`. Settles
    every call that it came to. Raises what asyncpg raises where Postgres is away.
    """
    try:
        queued = await _transaction(connection, calls, revision, deadline)
    except _BAD:
        queued = False
        for call in calls:
            queued |= await _alone(connection, call, revision, deadline)
    else:
        for call in calls:
            call.settle()
    return queued


async def _alone(
    connection: DirectConnection, call: Call, revision: str, deadline: float | None
) -> bool:
    """One call; a turn that breaks a rule for trainable ones is kept as an untrainable one."""
    try:
        queued = await _transaction(connection, [call], revision, deadline)
    except _BAD as error:
        refused = StoreError(f"Postgres refuses the record: {named(error)}")
    else:
        call.settle()
        return queued
    if (lesser := call.untrainable()) is not None:
        with contextlib.suppress(*_BAD):
            queued = await _transaction(connection, [lesser], revision, deadline)
            log.warning("turn_untrainable", reason="length_mismatch", error=refused.message)
            call.settle()
            return queued
    call.settle(refused)
    return False


async def _transaction(
    connection: DirectConnection, calls: Sequence[Call], revision: str, deadline: float | None
) -> bool:
    """Commit or roll back. A lost connection is left as it is, for nothing to wait on it."""
    now, tries = asyncio.get_running_loop().time, _TRIES
    while True:
        tries -= 1
        try:
            try:
                # Of one statement asyncpg itself watches the time, for less.
                timeout_s = None if deadline is None else deadline - now()
                return await store_at_once(connection, calls, revision, timeout_s)
            except Apart:
                async with asyncio.timeout_at(deadline):
                    return await _step_by_step(connection, calls, revision)
        except asyncpg.TransactionRollbackError:
            if not tries:
                raise


async def _step_by_step(
    connection: asyncpg.Connection, calls: Sequence[Call], revision: str
) -> bool:
    await connection.execute("BEGIN")
    try:
        queued = await store(connection, calls, revision)
        await connection.execute("COMMIT")
    except AWAY:
        raise
    except asyncpg.PostgresError:
        await connection.execute("ROLLBACK")
        raise
    return queued


def named(error: Exception) -> str:
    """What went wrong, without the rows: details quote them, and so does asyncpg's DataError."""
    kind = type(error).__name__
    if constraint := getattr(error, "constraint_name", None):
        return f"{kind} ({constraint})"
    if isinstance(error, asyncpg.DataError):
        return kind
    if isinstance(error, asyncpg.PostgresError):
        return f"{kind}: {error.args[0]}" if error.args else kind
    return str(error) or kind
