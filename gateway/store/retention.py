"""Clears what tenants keep for a time only, a batch at a time, by one process at a time.

Each tenant and part has a mark, the id up to which nothing is left; a pass goes on from it. A batch
is one short transaction that moves the marks too, so that a pass may be killed anywhere. Tenants
that keep a part for as long, and have come as far, share a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from gateway.config import RetentionSettings
from gateway.errors import StoreUnavailable
from gateway.store.audit import JOB, add_entry
from gateway.store.database import AWAY, Database, unavailable
from gateway.store.erasure import CHANNEL, Erasure
from gateway.store.erasures import forget_old
from gateway.store.expiry import BOUND, DUE, Batch, Cleared, Part, clear
from gateway.store.periods import first_id
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: The bytes of "retentio": one lock a database.
_LOCK = 0x726574656E74696F
_DAY_S = 86_400.0
_LOCK_TIMEOUT_MS = "3000"
#: Due turns are counted among so many at most, that planning stays quick.
_MOST_COUNTED = 100_000
_MOST_SESSIONS = 500
#: Longer than a request is under way: what it stores of somebody who was erased meanwhile goes too.
_UNDER_WAY_S = 3600.0

_TENANTS = """
SELECT t.id, t.name, p.part, (t.settings #>> ARRAY['retention', p.part || '_days'])::float8 AS days,
    coalesce(m.cleared_to, '00000000-0000-0000-0000-000000000000') AS mark
FROM tenants t CROSS JOIN unnest($1::text[]) AS p(part)
LEFT JOIN retention_marks m ON m.tenant_id = t.id AND m.part = p.part
WHERE t.settings #>> ARRAY['retention', p.part || '_days'] IS NOT NULL
ORDER BY t.name, p.part
"""

# Whoever stores older turns takes marks back, before this batch or after it.
_HOLD = """
SELECT FROM retention_marks WHERE tenant_id = ANY($1::uuid[]) AND part = $2
ORDER BY tenant_id FOR UPDATE
"""

# One that was taken back since this pass read it stays so: the next pass begins there.
_MARK = """
INSERT INTO retention_marks (tenant_id, part, cleared_to)
SELECT tenant_id, $2, $3 FROM unnest($1::uuid[]) AS t(tenant_id)
ON CONFLICT (tenant_id, part) DO UPDATE SET cleared_to = excluded.cleared_to, updated_at = now()
WHERE retention_marks.cleared_to = $4
"""

_EMPTY_SESSIONS = f"""
DELETE FROM sessions WHERE id IN (
    SELECT s.id FROM sessions s
    WHERE s.tenant_id = ANY($1::uuid[]) AND s.last_seen < to_timestamp($2)
      AND NOT EXISTS (SELECT FROM turns t WHERE t.session_id = s.id)
    LIMIT {_MOST_SESSIONS}
)
"""  # noqa: S608 - made of constants


@dataclass(slots=True, kw_only=True)
class Term:
    """How long a tenant keeps a part, and how far it has been cleared (`mark`)."""

    tenant_id: UUID
    tenant: str
    part: Part
    days: float
    mark: UUID

    def cutoff(self, now: float) -> UUID:
        """Turns with smaller ids are older than that."""
        return first_id(now - self.days * _DAY_S)


@dataclass(slots=True, kw_only=True)
class Pass:
    """What a pass did: turns cleared by part, and turns that were dropped from training for it.

    `waiting` names the parts that came to a turn which is still needed.
    """

    turns: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    waiting: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Retention:
    """Raises StoreUnavailable where Postgres is away, asyncpg's error where it refuses."""

    def __init__(self, database: Database, settings: RetentionSettings) -> None:
        self._database = database
        self._settings = settings

    async def plan(self, now: float | None = None) -> list[dict[str, Any]]:
        """What the next pass would do: by tenant and part, `due` turns among the next ones.

        `more` says that there are more than were counted.
        """
        now = time.time() if now is None else now
        planned = []
        for term in await self._terms(list(Part)):
            cutoff = term.cutoff(now)
            rows = await self._database.fetch(
                f"SELECT count(*) AS due FROM ({DUE[term.part]} LIMIT {_MOST_COUNTED}) AS next",  # noqa: S608 - made of constants
                term.mark,
                cutoff,
                [term.tenant_id],
            )
            planned.append(
                {
                    "tenant": term.tenant,
                    "part": term.part.value,
                    "days": term.days,
                    "until": now - term.days * _DAY_S,
                    "due": rows[0]["due"],
                    "more": rows[0]["due"] == _MOST_COUNTED,
                }
            )
        return planned

    async def run(self, now: float | None = None) -> Pass | None:
        """Clear all that is due; None where another process is at it."""
        now = time.time() if now is None else now
        began = time.monotonic()
        async with self._leading() as connection:
            if connection is None:
                return None
            done = Pass()
            with unavailable():
                for part in Part:
                    await self._part(connection, part, now, done)
                await forget_old(connection)
                if done.turns:
                    subject = {"turns": done.turns, "dropped": done.dropped}
                    await add_entry(connection, None, JOB, "retention", subject)
                    # Gateways have the ids of recent turns in memory.
                    await connection.execute("SELECT pg_notify($1, '')", CHANNEL)
        done.seconds = round(time.monotonic() - began, 3)
        return done

    async def _part(
        self, connection: asyncpg.Connection, part: Part, now: float, done: Pass
    ) -> None:
        open_terms = [one for one in await self._terms([part]) if one.mark < one.cutoff(now)]
        began = time.monotonic()
        looked = 0
        while open_terms:
            first = min(open_terms, key=lambda one: (one.mark, one.days))
            group = [one for one in open_terms if (one.mark, one.days) == (first.mark, first.days)]
            cleared = await self._batch(connection, group, open_terms, now)
            if cleared.turns:
                done.turns[part.value] = done.turns.get(part.value, 0) + cleared.turns
            done.dropped += cleared.dropped
            for one in group:
                one.mark = cleared.upto
            if cleared.waits:
                done.waiting.append(part.value)
                open_terms = [one for one in open_terms if one not in group]
            open_terms = [one for one in open_terms if one.mark < one.cutoff(now)]
            looked += self._settings.batch
            await asyncio.sleep(began + looked / self._settings.turns_per_s - time.monotonic())
        if part is Part.TURNS:
            await self._sessions(connection, now)

    async def _batch(
        self,
        connection: asyncpg.Connection,
        group: Sequence[Term],
        others: Sequence[Term],
        now: float,
    ) -> Cleared:
        first = group[0]
        # As far as the next one has come, so that it joins them there.
        ahead = [one.mark for one in others if one.mark > first.mark]
        limit = min([first.cutoff(now), *ahead])
        tenants = [one.tenant_id for one in group]
        async with connection.transaction():
            await connection.execute(_HOLD, tenants, first.part.value)
            end = await connection.fetchval(BOUND, first.mark, limit, self._settings.batch)
            batch = Batch(
                part=first.part,
                tenants=tenants,
                after=first.mark,
                upto=limit if end is None else end,
                forced=first_id(now - first.days * _DAY_S - self._settings.grace_s),
            )
            cleared = await clear(connection, batch)
            await connection.execute(_MARK, tenants, first.part.value, cleared.upto, first.mark)
        return cleared

    async def _sessions(self, connection: asyncpg.Connection, now: float) -> None:
        """Sessions of which nothing is left go too."""
        for term in await self._terms([Part.TURNS]):
            since = now - term.days * _DAY_S
            done = f"DELETE {_MOST_SESSIONS}"
            while done == f"DELETE {_MOST_SESSIONS}":
                done = await connection.execute(_EMPTY_SESSIONS, [term.tenant_id], since)

    async def _terms(self, parts: Sequence[Part]) -> list[Term]:
        rows = await self._database.fetch(_TENANTS, [part.value for part in parts])
        return [
            Term(
                tenant_id=row["id"],
                tenant=row["name"],
                part=Part(row["part"]),
                days=row["days"],
                mark=row["mark"],
            )
            for row in rows
        ]

    @asynccontextmanager
    async def _leading(self) -> AsyncIterator[asyncpg.Connection | None]:
        """A connection that holds the lock, which goes with it; None where another has it."""
        connection = await self._database.connect(lock_timeout=_LOCK_TIMEOUT_MS)
        try:
            with unavailable():
                held = await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK)
            yield connection if held else None
        finally:
            connection.terminate()


async def keep_retention(database: Database, settings: RetentionSettings) -> None:
    """Look every `settings.check_s` until cancelled. Any number of processes may."""
    retention, erasure = Retention(database, settings), Erasure(database)
    while True:
        await asyncio.sleep(settings.check_s)
        if database.revision < "0003":
            continue
        try:
            await erasure.again(_UNDER_WAY_S)
            done = await retention.run()
        except (StoreUnavailable, asyncpg.PostgresError, *AWAY) as error:
            # What was cleared is; the next look goes on from there.
            log.warning("retention_stopped", error=type(error).__name__)
        else:
            if done is not None and (done.turns or done.dropped):
                log.info(
                    "retention_cleared",
                    turns=done.turns,
                    dropped=done.dropped,
                    waiting=done.waiting,
                    seconds=done.seconds,
                )
