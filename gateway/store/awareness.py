"""Keeps `session_awareness` as its file and Postgres say, while the process runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import asyncpg
from pydantic import ValidationError

from gateway.classify import Awareness
from gateway.config import SessionSettings
from gateway.errors import ConfigError, StoreError
from gateway.store.database import Database
from gateway.store.settings import SETTINGS_CHANNEL, SettingStore
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: The setting's name in Postgres, and those fields of the section that it may set.
AWARENESS = "session_awareness"
CHANGEABLE = ("session_timeout_s", "trainable_patterns", "auxiliary_patterns")
_ALSO = {"session_timeout": "session_timeout_s"}

_LOOK_S = 2.0


def overlaid(settings: SessionSettings, value: Mapping[str, Any]) -> SessionSettings:
    """What the file says, with what Postgres says over it. Raises ConfigError for a wrong value."""
    value = {_ALSO.get(name, name): item for name, item in value.items()}
    if unknown := sorted(set(value) - set(CHANGEABLE)):
        raise ConfigError(f"{AWARENESS}: {', '.join(unknown)} cannot be changed at run time")
    try:
        return SessionSettings.model_validate({**settings.model_dump(), **value})
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise ConfigError(f"{AWARENESS}: " + "; ".join(lines)) from None


class AwarenessFollower:
    """Looks when the file changes, when it is told to, and when Postgres announces a change.

    `read` reads the section anew. What is wrong is logged, and the rules in force stay.
    """

    def __init__(
        self,
        awareness: Awareness,
        database: Database,
        *,
        file: Path | None = None,
        read: Callable[[], SessionSettings],
        look_s: float = _LOOK_S,
    ) -> None:
        self._awareness = awareness
        self._database = database
        self._store = SettingStore(database)
        self._file = file
        self._read = read
        self._look_s = look_s
        #: What the settings file says.
        self.said = awareness.settings
        self._stamp = self._stamped()
        self._told = asyncio.Event()
        self._reread = False
        self._asked = False

    def reload(self) -> None:
        """Read everything again now, as on SIGHUP."""
        self._reread = self._asked = True
        self._told.set()

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._database.listen(SETTINGS_CHANNEL, self._announced)
        self._asked = True
        while True:
            await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._told.wait()
            self._told.clear()

    def _announced(self, name: str) -> None:
        # Nothing is named where announcements may have been missed.
        if name in (AWARENESS, ""):
            self._asked = True
            self._told.set()

    async def _look(self) -> None:
        stamp = await asyncio.to_thread(self._stamped)
        changed = stamp != self._stamp or self._reread
        if not changed and not self._asked:
            return
        # Taken before anything is read: what is announced meanwhile asks for another look.
        self._stamp, self._reread, self._asked = stamp, False, False
        try:
            if changed:
                self.said = await asyncio.to_thread(self._read)
            stored = await self._store.get(AWARENESS)
            wanted = overlaid(self.said, stored.value if stored else {})
            adopted = self._awareness.adopt(wanted)
        except ConfigError as error:
            log.error("session_rules_kept", error=error.message)  # noqa: TRY400 - says it all
        except (StoreError, asyncpg.PostgresError) as error:
            # Asked for still: it is looked up again once Postgres is back.
            self._asked = True
            log.warning("session_rules_not_read", error=type(error).__name__)
        else:
            if adopted:
                log.info(
                    "session_rules_changed",
                    trainable_patterns=len(wanted.trainable_patterns),
                    auxiliary_patterns=len(wanted.auxiliary_patterns),
                    session_timeout_s=wanted.session_timeout_s,
                    version=stored.version if stored else 0,
                )

    def _stamped(self) -> tuple[int, int] | None:
        """When the file was written last, and its size; None where there is none."""
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
