"""Which engines operators have drained: a setting in Postgres that every gateway follows.

A draining engine gets no new request from any gateway; what runs on it ends there. It is asked how
it is and is given new versions as before, so that it may serve again at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import asyncpg

from gateway.errors import StoreUnavailable
from gateway.store.audit import CLI, add_entry
from gateway.store.changes import Change, note_change
from gateway.store.database import Database
from gateway.store.once import made_before
from gateway.store.packing import scrub
from gateway.store.setting_follower import LOOK_S, SettingFollower
from gateway.store.settings import SETTINGS_CHANNEL, SettingStore

DRAINS = "drains"

# What drains already stays so, with the reason that it has.
_DRAIN = """
INSERT INTO settings AS s (name, value) VALUES ($1, jsonb_build_object($2::text, $3::jsonb))
ON CONFLICT (name) DO UPDATE SET value = s.value || excluded.value, version = s.version + 1,
    updated_at = now()
WHERE NOT s.value ? $2
RETURNING true
"""

_RESUME = """
UPDATE settings SET value = value - $2::text, version = version + 1, updated_at = now()
WHERE name = $1 AND value ? $2 RETURNING true
"""

Found = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drains:
    """By the name of an engine what is known of its draining: `since`, `reason` and `by`."""

    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        return {"engines": len(self.engines)}

    def followed(self) -> dict[str, float]:
        """For a report: since when each drains, which tells one draining from the next."""
        return {name: entry["since"] for name, entry in self.engines.items()}


def read_drains(value: Mapping[str, Any]) -> Drains:
    """The setting as it is stored."""
    return Drains(engines=dict(value))


class Told(Protocol):
    """A gateway as it last reported itself: `detail` has `engines`, and `drains` by their names.

    The latter are what it follows, as `Drains.followed` has it.
    """

    @property
    def id(self) -> Any: ...

    @property
    def detail(self) -> Mapping[str, Any]: ...


def standing(drains: Drains, gateways: Iterable[Told]) -> list[Found]:
    """`{"name", "draining", …}` of each engine that a gateway has, or that drains (pure).

    It is `drained` once every gateway that has it keeps off it and has no request left there: none
    of them begins one before it is resumed.
    """
    places: dict[str, list[Found]] = {name: [] for name in drains.engines}
    for gateway in gateways:
        # Those of an earlier release know of no draining.
        followed = gateway.detail.get("drains", {})
        for engine in gateway.detail.get("engines", ()):
            name = engine["name"]
            # A report may be older than a resuming and another draining.
            behind = name in drains.engines and followed.get(name) != drains.engines[name]["since"]
            place = {
                "id": gateway.id,
                "healthy": engine["healthy"],
                "draining": name in followed and not behind,
                "requests": engine.get("requests"),
            }
            places.setdefault(name, []).append(place)
    return [
        engine_standing(name, drains.engines.get(name), at) for name, at in sorted(places.items())
    ]


def engine_standing(name: str, entry: Mapping[str, Any] | None, places: list[Found]) -> Found:
    """One of `standing`, as gateways have it in these places (pure)."""
    known = entry or {}
    return {
        "name": name,
        "draining": entry is not None,
        "drained": entry is not None
        and all(one["draining"] and one["requests"] == 0 for one in places),
        "requests": sum(one["requests"] or 0 for one in places),
        "since": known.get("since"),
        "reason": known.get("reason"),
        "by": known.get("by"),
        "gateways": places,
    }


class DrainStore:
    """Reads and changes the setting. Every method raises StoreUnavailable.

    A `change` of None is one of the command line. The same change sent again does nothing; as
    `made_before`, it raises Conflict where it was another.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._settings = SettingStore(database)

    async def read(self) -> Drains:
        stored = await self._settings.get(DRAINS)
        return read_drains(stored.value if stored else {})

    async def drain(self, engine: str, reason: str, change: Change | None = None) -> Drains:
        by = CLI if change is None else str(change.who.key_id)
        entry = scrub({"since": time.time(), "reason": reason, "by": by})
        return await self._change(_DRAIN, (engine, entry), change, "engine_drained")

    async def resume(self, engine: str, change: Change | None = None) -> Drains:
        return await self._change(_RESUME, (engine,), change, "engine_resumed")

    async def _change(
        self, statement: str, values: tuple[Any, ...], change: Change | None, action: str
    ) -> Drains:
        if self._database.revision < "0003":
            raise StoreUnavailable("the database must be upgraded before engines are drained")
        async with self._database.transaction() as connection:
            if change is None or not await made_before(connection, change.once):
                changed = await connection.fetchval(statement, DRAINS, *values)
                await _note(connection, change, action, values[0], bool(changed))
        return await self.read()


async def _note(
    connection: asyncpg.Connection, change: Change | None, action: str, engine: str, changed: bool
) -> None:
    if changed:
        await connection.execute("SELECT pg_notify($1, $2)", SETTINGS_CHANNEL, DRAINS)
    if change is None:
        if changed:
            await add_entry(connection, None, CLI, action, {"target": engine})
    elif changed or change.once is not None:
        # What was marked is remembered though there was nothing to do.
        await note_change(connection, change)


class DrainFollower(SettingFollower[Drains]):
    """Keeps `current` as Postgres says; `changed` is called where that differs from before."""

    def __init__(
        self,
        database: Database,
        look_s: float = LOOK_S,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(database, DRAINS, read_drains, look_s=look_s, changed=changed)
