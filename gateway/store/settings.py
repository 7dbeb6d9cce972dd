"""What operators change while everything runs, by name; every process is told of a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import StoreUnavailable
from gateway.store.changes import Change, note_change
from gateway.store.database import Database
from gateway.store.packing import scrub

#: The payload is the name of the setting that changed.
SETTINGS_CHANNEL = "nextstate_settings"

_GET = "SELECT value, version FROM settings WHERE name = $1"

# A change is made only to the version that its maker saw, where he names one.
_PUT = """
INSERT INTO settings AS s (name, value) SELECT $1, $2 WHERE coalesce($3::int8, 0) = 0
ON CONFLICT (name) DO UPDATE SET value = excluded.value, version = s.version + 1,
    updated_at = now()
WHERE $3::int8 IS NULL
RETURNING version
"""

_CHANGE = """
UPDATE settings SET value = $2, version = version + 1, updated_at = now()
WHERE name = $1 AND version = $3 RETURNING version
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A setting as it stands; `version` counts its changes from 1."""

    value: Mapping[str, Any]
    version: int


class SettingStore:
    """Settings in Postgres. Every method raises StoreUnavailable where it is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, name: str) -> Stored | None:
        """None where nobody has set it, and at revision 0002, which has no settings."""
        if self._database.revision < "0003":
            return None
        row = await self._database.fetchrow(_GET, name)
        return None if row is None else Stored(row["value"], row["version"])

    async def put(
        self,
        name: str,
        value: Mapping[str, Any],
        *,
        seen: int | None = None,
        change: Change | None = None,
    ) -> int | None:
        """Set and announce; the new version.

        `seen` is the version that the change is made to, 0 for none: where another one stands,
        nothing changes and None is returned. With a `change`, who made it is on record.
        """
        if self._database.revision < "0003":
            raise StoreUnavailable("the database must be upgraded before settings are kept in it")
        statement = _CHANGE if seen else _PUT
        async with self._database.transaction() as connection:
            version: int | None = await connection.fetchval(
                statement, name, scrub(dict(value)), seen
            )
            if version is not None:
                await connection.execute("SELECT pg_notify($1, $2)", SETTINGS_CHANNEL, name)
                if change is not None:
                    await note_change(connection, change)
        return version
