"""Turns and sessions as the gateway reads them while it serves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

from gateway.classify import COMPACTION
from gateway.records import (
    Candidate,
    Message,
    NextState,
    SessionRecord,
    Trail,
    TurnRecord,
)
from gateway.resolve import Branch, Leaf, NamedSession
from gateway.store.beside import asked_by, find_branches, put_beside
from gateway.store.candidates import Candidates
from gateway.store.closing import CLOSE_IDLE, END_SESSION, LOCK_SESSION
from gateway.store.database import Database
from gateway.store.leaves import find_leaf
from gateway.store.packing import scrub
from gateway.store.recent import RecentTurns
from gateway.store.trails import CHAIN, TrailCache, assemble, of_turn
from gateway.store.wanted import Wanted

#: A look-up of so many takes some milliseconds.
_MANY_PREFIXES = 200

_CACHE_BYTES = 64 * 1024 * 1024

_BY_NAME = f"""
SELECT s.external_id, s.id, count(t.id) AS turns,
    coalesce(bool_or(t.tools <> '[]'), false) AS has_tools,
    coalesce((array_agg(t.kind_rule ORDER BY t.id DESC))[1] = '{COMPACTION}', false) AS compacted
FROM sessions s LEFT JOIN LATERAL (
    SELECT id, tools, kind_rule FROM turns WHERE session_id = s.id ORDER BY id DESC LIMIT 32
) t ON true
WHERE s.tenant_id = $1 AND s.external_id = ANY($2::text[]) GROUP BY s.id
"""  # noqa: S608


class TurnStore:
    """Finds parents, sessions and ids. Everything is inside one tenant.

    Every method raises StoreUnavailable where Postgres is away.
    """

    def __init__(
        self, database: Database, cache_turns: int, cache_bytes: int = _CACHE_BYTES
    ) -> None:
        self._database = database
        self._patience_s = database.settings.commit_timeout_s
        self._candidates = Candidates(database, self._patience_s)
        # Of conversations so long that nobody else is to wait for their look-up.
        self._long = Candidates(database, self._patience_s)
        self._cache = TrailCache(cache_turns, cache_bytes)
        self._recent = RecentTurns(cache_turns)

    async def find_candidates(self, tenant_id: UUID, wanted: Wanted) -> list[Candidate]:
        """Stored turns by any of what is wanted, the deepest first, the newest first.

        One query, of which each part uses an index, whatever the number of keys. A turn that is
        found by several is listed several times.
        """
        candidates = self._long if len(wanted.chains) > _MANY_PREFIXES else self._candidates
        found = await candidates.find(tenant_id, wanted)
        return self._recent.merged(tenant_id, wanted, found)

    def recent_candidates(self, tenant_id: UUID, wanted: Wanted) -> list[Candidate]:
        """The same of what this process stored last, for when Postgres is away."""
        return self._recent.find(tenant_id, wanted)

    async def named_sessions(
        self, tenant_id: UUID, names: Collection[str]
    ) -> dict[str, NamedSession]:
        """The sessions that clients' own names mean inside a tenant, by their latest turns."""
        stored = {scrub(name): name for name in names}
        rows = await self._database.fetch(
            _BY_NAME, tenant_id, list(stored), timeout_s=self._patience_s
        )
        found = {
            stored[row["external_id"]]: NamedSession(
                id=row["id"],
                turns=row["turns"],
                has_tools=row["has_tools"],
                compacted=row["compacted"],
            )
            for row in rows
        }
        return _sessions(self._recent.unstored_name, tenant_id, names) | found

    def recent_sessions(self, tenant_id: UUID, names: Collection[str]) -> dict[str, NamedSession]:
        """The same of what this process stored last."""
        return _sessions(self._recent.named, tenant_id, names)

    async def leaf(self, tenant_id: UUID, session_id: UUID, ancestor_id: UUID) -> Leaf | None:
        """The newest main-line turn of a session, if it descends from the ancestor.

        None at revision 0002, which cannot say that a reply was discarded.
        """
        if self._database.revision < "0003":
            return None
        return await find_leaf(self._database, tenant_id, session_id, ancestor_id, self._patience_s)

    async def branches(self, tenant_id: UUID, parent_id: UUID) -> list[Branch]:
        """The turns that extend a reply. None at revision 0002, as for `leaf`."""
        if self._database.revision < "0003":
            return []
        return await find_branches(self._database, tenant_id, parent_id, self._patience_s)

    async def asked(self, tenant_id: UUID, turn_id: UUID) -> tuple[tuple[Message, ...], float]:
        """(what was new in a turn's request, when it came); nothing where it is not stored yet."""
        return await asked_by(self._database, tenant_id, turn_id)

    async def set_beside(
        self,
        tenant_id: UUID,
        beside: Collection[UUID],
        given_up: Collection[UUID],
        state: NextState | None,
    ) -> None:
        """Take turns off the main line; `state` is what followed their parent's reply instead."""
        await put_beside(self._database, tenant_id, list(beside), list(given_up), state)

    async def exists(self, tenant_id: UUID, turn_id: UUID) -> bool:
        found: bool = await self._database.fetchval(
            "SELECT EXISTS (SELECT FROM turns WHERE id = $1 AND tenant_id = $2)",
            turn_id,
            tenant_id,
        )
        return found

    async def trail(self, tenant_id: UUID, turn_id: UUID) -> Trail | None:
        """All ids of a turn; None where it, or an ancestor that it needs, is not stored."""
        if (cached := self._cache.get(tenant_id, turn_id)) is not None:
            return cached
        rows = await self._database.look_up(CHAIN, [turn_id], tenant_id, timeout_s=self._patience_s)
        trail = assemble(rows)
        if trail is not None:
            self._cache.put(tenant_id, trail)
        return trail

    def remember(
        self,
        turn: TurnRecord,
        parent: Trail | None = None,
        session: SessionRecord | None = None,
        *,
        stored: bool = True,
    ) -> None:
        """Keep a turn that was just stored: its ids, and with its session how it is found.

        `stored` says that Postgres has it, not the spool.
        """
        if session is not None:
            self._recent.add(turn, session, stored=stored)
        if parent is None and turn.parent_id is not None:
            parent = self._cache.get(turn.tenant_id, turn.parent_id)
        if (trail := of_turn(turn, parent)) is not None:
            self._cache.put(turn.tenant_id, trail)

    def forget(self) -> None:
        """Forget what was stored last: some of it has been erased."""
        self._recent.clear()
        self._cache.clear()

    async def end_session(self, tenant_id: UUID, session_id: UUID, reason: str) -> bool:
        """Close a session; whether it was open. Turns that nothing followed get a verdict."""
        async with self._database.transaction() as connection:
            await connection.execute(LOCK_SESSION, tenant_id, session_id)
            closed: int = await connection.fetchval(END_SESSION, reason, tenant_id, session_id)
        return closed > 0

    async def close_idle(self, timeout_s: float, limit: int = 500) -> int:
        """Close sessions not seen for `timeout_s`, at most `limit` of them; how many."""
        closed: int = await self._database.fetchval(CLOSE_IDLE, "idle", timeout_s, limit)
        return closed


def _sessions(
    of: Callable[[UUID, str], UUID | None], tenant_id: UUID, names: Collection[str]
) -> dict[str, NamedSession]:
    known = {name: of(tenant_id, name) for name in names}
    return {name: NamedSession(id=id_, turns=1) for name, id_ in known.items() if id_}
