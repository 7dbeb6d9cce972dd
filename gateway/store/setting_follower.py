"""A setting of Postgres, followed by a process: nothing that is served asks for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import asyncpg

from gateway.errors import StoreError
from gateway.store.database import Database
from gateway.store.settings import SETTINGS_CHANNEL, SettingStore
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: Between looks, in case a change was not announced here.
LOOK_S = 5.0


class Countable(Protocol):
    def counts(self) -> dict[str, int]:
        """For the log: how much of each kind there is."""
        ...


T = TypeVar("T", bound=Countable)


class SettingFollower(Generic[T]):
    """Keeps `current` as Postgres says; while it is away, as it said last.

    `read` makes a record of the setting's value, which is empty where nobody has set it. `changed`
    is called where the record differs from the one before.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        read: Callable[[Mapping[str, Any]], T],
        *,
        look_s: float = LOOK_S,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._database, self._name, self._read = database, name, read
        self._look_s, self._changed = look_s, changed
        self._store = SettingStore(database)
        self._told = asyncio.Event()
        #: One read after the other, so that none puts back what an earlier one saw.
        self._reading = asyncio.Lock()
        self.current = read({})

    async def refresh(self) -> None:
        """Read once. An outage of Postgres leaves what is known."""
        async with self._reading:
            try:
                stored = await self._store.get(self._name)
            except (StoreError, asyncpg.PostgresError) as error:
                log.warning("setting_not_read", setting=self._name, error=type(error).__name__)
                return
            found = self._read(stored.value if stored else {})
            if found != self.current:
                self.current = found
                log.info("setting_changed", setting=self._name, **found.counts())
                self._changed()

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._database.listen(SETTINGS_CHANNEL, self._announced)
        while True:
            self._told.clear()
            await self.refresh()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._told.wait()

    def _announced(self, name: str) -> None:
        # Nothing is named where announcements may have been missed.
        if name in (self._name, ""):
            self._told.set()
