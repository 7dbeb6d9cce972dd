"""Signs of life: every process says once a second that it is there, and how it is."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

import asyncpg

from gateway.errors import StoreUnavailable
from gateway.records import new_id
from gateway.store.database import AWAY, REVISIONS, Database, seconds
from gateway.telemetry import get_logger

log = get_logger(__name__)

Report = Callable[[], Mapping[str, Any]]

_BEAT = """
INSERT INTO workers (id, kind, host, pid, revision, detail) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (id) DO UPDATE SET detail = excluded.detail, heartbeat_at = now()
"""

_FORGET = "DELETE FROM workers WHERE heartbeat_at < now() - interval '1 day'"

_ALIVE = f"""
SELECT id, kind, host, pid, revision, detail, {seconds("started_at")} AS started_at,
    {seconds("heartbeat_at")} AS heartbeat_at
FROM workers WHERE kind = $1 AND heartbeat_at > now() - make_interval(secs => $2)
ORDER BY started_at, id
"""  # noqa: S608 - made of constants


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process as it last reported itself; `detail` is what its kind has to tell."""

    id: UUID
    kind: str
    host: str
    pid: int
    revision: str
    detail: Mapping[str, Any]
    started_at: float
    heartbeat_at: float


class Workers:
    """Who is alive."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def alive(self, kind: str, within_s: float) -> list[Worker]:
        """Workers of a kind that reported within the last `within_s`, the longest-lived first."""
        return [Worker(**dict(row)) for row in await self._database.fetch(_ALIVE, kind, within_s)]


class Heartbeat:
    """Reports this process until it is closed; `report` is asked before each beat.

    An outage of Postgres is waited out.
    """

    def __init__(
        self,
        database: Database,
        kind: str,
        report: Report = dict,
        *,
        interval_s: float = 1.0,
        worker_id: UUID | None = None,
    ) -> None:
        self.id = worker_id or new_id()
        self._database = database
        self._kind = kind
        self._report = report
        self._interval_s = interval_s
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, database: Database, kind: str, report: Report = dict, *, interval_s: float = 1.0
    ) -> Self:
        """A started heartbeat. Raises StoreUnavailable."""
        heartbeat = cls(database, kind, report, interval_s=interval_s)
        await heartbeat.start()
        return heartbeat

    async def start(self) -> None:
        """Report once, and go on reporting. Raises StoreUnavailable."""
        await self._database.execute(_FORGET)
        await self._beat()
        self._task = asyncio.create_task(self._run(), name=f"heartbeat of {self._kind}")

    def changed(self) -> None:
        """Report now rather than at the next beat."""
        self._changed.set()

    async def close(self) -> None:
        """Stop, and take this process off the list."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            await self._database.execute("DELETE FROM workers WHERE id = $1", self.id)
        except StoreUnavailable as error:
            log.warning("heartbeat_not_removed", error=error.message)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                await self._beat()
            except (StoreUnavailable, asyncpg.PostgresError, *AWAY) as error:
                log.warning("heartbeat_missed", error=type(error).__name__)

    async def _beat(self) -> None:
        await self._database.execute(
            _BEAT,
            self.id,
            self._kind,
            socket.gethostname(),
            os.getpid(),
            REVISIONS[-1],
            dict(self._report()),
        )
