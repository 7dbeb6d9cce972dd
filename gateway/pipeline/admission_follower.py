"""Reads what admission goes by, every now and then and when there is news."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from uuid import UUID

import asyncpg

from gateway.errors import StoreError
from gateway.pipeline.admission import Admitter
from gateway.store.admission import AdmissionStore
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: The share of the time that is spent on reading, at most: where there is very much to count, or
#: little room that many want, counts are older or the wait is longer.
_SHARE = 0.1


class Follower:
    """Keeps an Admitter up to date until it is cancelled. An outage of Postgres is waited out."""

    def __init__(
        self, admitter: Admitter, store: AdmissionStore, worker_id: UUID, refresh_s: float
    ) -> None:
        self._admitter, self._store = admitter, store
        self._worker_id, self._every_s = worker_id, refresh_s / 2
        self._changed = asyncio.Event()

    def poke(self) -> None:
        """A version has consumed its samples, or another is live."""
        self._changed.set()

    async def refresh(self) -> None:
        """Read once. Raises StoreError."""
        at = time.monotonic()
        running = self._admitter.reading()
        counts = await self._store.counts(self._worker_id, running, time.time())
        self._admitter.learn(counts, at)

    async def run(self) -> None:
        while True:
            self._changed.clear()
            began = time.monotonic()
            try:
                await self.refresh()
            except (StoreError, asyncpg.PostgresError) as error:
                log.warning("admission_not_refreshed", error=type(error).__name__)
            took_s = time.monotonic() - began
            await asyncio.sleep(took_s / _SHARE - took_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._changed.wait()
