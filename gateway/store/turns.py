"""Turns and sessions as the gateway reads them while it serves."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import asyncpg

from gateway.classify import COMPACTION
from gateway.records import (
    Candidate,
    FinishReason,
    SessionRecord,
    Trail,
    TurnKind,
    TurnRecord,
)
from gateway.resolve import NamedSession
from gateway.store.database import Database, seconds
from gateway.store.packing import scrub
from gateway.store.recent import RecentTurns, Wanted
from gateway.store.trails import CHAIN, TrailCache, assemble, of_turn

#: Equal conversations of one tenant beyond these are told apart by nothing anyway.
_MOST_CANDIDATES = 64

#: Of what many have said, some are enough to see that it tells nothing.
_MOST_OF_A_KEY = 8

_CACHE_BYTES = 64 * 1024 * 1024

_COLUMNS = """
id, session_id, lineage_id, parent_id, chain_hash, depth, message_count, kind, tools_hash,
finish_reason, created_at, request_hash, idempotency_key, delivered
"""

#: Before revision 0002 nothing said more of delivery than that a turn was cut off.
_COLUMNS_0001 = _COLUMNS.replace(
    "idempotency_key, delivered",
    "NULL::text AS idempotency_key, finish_reason <> 'abort' AS delivered",
)

_OF_ECHOES = f"""
SELECT {_COLUMNS.replace("id, session_id", "t.id, session_id", 1)}, e.id AS echo
FROM unnest($3::text[]) AS k(key) CROSS JOIN LATERAL (
    SELECT id, turn_id FROM echoes WHERE tenant_id = $1 AND id = k.key
    ORDER BY turn_id DESC LIMIT {_MOST_OF_A_KEY}
) e JOIN turns t ON t.id = e.turn_id AND t.tenant_id = $1
"""  # noqa: S608 - made of constants

_OF_ECHOES_0001 = f"""
SELECT {_COLUMNS_0001}, NULL::text FROM turns WHERE false AND kind = ANY($3::text[])
"""  # noqa: S608

# Each arm picks turns by an index of its own, bounded, before anything is joined to them: the
# planner is left no choice.
_CANDIDATES = """
SELECT t.id, t.session_id, t.lineage_id, t.parent_id, t.chain_hash, t.depth, t.message_count,
    t.kind, t.tools_hash, t.finish_reason, t.request_hash, t.idempotency_key, t.delivered, t.echo,
    s.end_user AS "user", {created_at} AS created_at,
    EXISTS (SELECT FROM turns c WHERE c.parent_id = t.id AND c.retry_of IS NULL) AS continued
FROM (
    (SELECT {columns}, NULL::text AS echo FROM turns
     WHERE tenant_id = $1 AND chain_hash = ANY($2::bytea[])
     ORDER BY message_count DESC, id DESC LIMIT {most})
    UNION ALL ({of_echoes})
    UNION ALL
    (SELECT {columns}, NULL FROM turns
     WHERE tenant_id = $1 AND request_hash = $4 AND created_at >= to_timestamp($5)
     ORDER BY created_at DESC LIMIT {most})
    UNION ALL
    (SELECT {columns}, NULL FROM turns WHERE tenant_id = $1 AND id = $6)
) AS t JOIN sessions s ON s.id = t.session_id
ORDER BY t.message_count DESC, t.id DESC
"""


def find_candidates_sql(revision: str) -> str:
    """The one query that finds parents and first attempts, for a schema."""
    old = revision == "0001"
    return _CANDIDATES.format(
        columns=_COLUMNS_0001 if old else _COLUMNS,
        of_echoes=_OF_ECHOES_0001 if old else _OF_ECHOES,
        created_at=seconds("t.created_at"),
        most=_MOST_CANDIDATES,
    )


_BY_NAME = f"""
SELECT s.external_id, s.id, count(t.id) AS turns,
    coalesce(bool_or(t.tools <> '[]'), false) AS has_tools,
    coalesce((array_agg(t.kind_rule ORDER BY t.id DESC))[1] = '{COMPACTION}', false) AS compacted
FROM sessions s LEFT JOIN LATERAL (
    SELECT id, tools, kind_rule FROM turns WHERE session_id = s.id ORDER BY id DESC LIMIT 32
) t ON true
WHERE s.tenant_id = $1 AND s.external_id = ANY($2::text[]) GROUP BY s.id
"""  # noqa: S608

# No turn is left without a word: those that nothing followed say so.
_CLOSE = """
, closed AS (
    UPDATE sessions s SET status = 'closed', end_reason = $1, ended_at = now()
    FROM chosen WHERE s.id = chosen.id RETURNING s.id
), silent AS (
    INSERT INTO verdicts (turn_id, outcome, reason)
    SELECT t.id, 'unscored', 'no_next_state'
    FROM closed JOIN turns t ON t.session_id = closed.id
    WHERE t.kind <> 'side'
      AND NOT EXISTS (SELECT FROM next_states n WHERE n.turn_id = t.id)
      AND NOT EXISTS (SELECT FROM judgements j WHERE j.turn_id = t.id)
    ON CONFLICT DO NOTHING
)
SELECT count(*) FROM closed
"""

_END_SESSION = f"""
WITH chosen AS (
    SELECT id FROM sessions
    WHERE tenant_id = $2 AND id = $3 AND status = 'open' FOR UPDATE
){_CLOSE}
"""  # noqa: S608

_CLOSE_IDLE = f"""
WITH chosen AS (
    SELECT id FROM sessions
    WHERE status = 'open' AND last_seen < now() - make_interval(secs => $2)
    ORDER BY last_seen LIMIT $3 FOR UPDATE SKIP LOCKED
){_CLOSE}
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
        self._cache = TrailCache(cache_turns, cache_bytes)
        self._recent = RecentTurns(cache_turns)

    async def find_candidates(self, tenant_id: UUID, wanted: Wanted) -> list[Candidate]:
        """Stored turns by any of what is wanted, the deepest first, the newest first.

        One query, of which each part uses an index, whatever the number of keys. A turn that is
        found by several is listed several times.
        """
        rows = await self._database.fetch(
            find_candidates_sql(self._database.revision),
            tenant_id,
            list(wanted.chains),
            list(wanted.echoes),
            wanted.request,
            wanted.since,
            wanted.previous,
            timeout_s=self._patience_s,
        )
        return self._recent.merged(tenant_id, wanted, map(_candidate, rows))

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
        return self.recent_sessions(tenant_id, names) | found

    def recent_sessions(self, tenant_id: UUID, names: Collection[str]) -> dict[str, NamedSession]:
        """The same of what this process stored last."""
        known = {name: self._recent.named(tenant_id, name) for name in names}
        return {name: NamedSession(id=id_, turns=1) for name, id_ in known.items() if id_}

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
        rows = await self._database.fetch(CHAIN, [turn_id], tenant_id, timeout_s=self._patience_s)
        trail = assemble(rows)
        if trail is not None:
            self._cache.put(tenant_id, trail)
        return trail

    def remember(
        self,
        turn: TurnRecord,
        parent: Trail | None = None,
        session: SessionRecord | None = None,
    ) -> None:
        """Keep a turn that was just stored: its ids, and with its session how it is found."""
        if session is not None:
            self._recent.add(turn, session)
        if parent is None and turn.parent_id is not None:
            parent = self._cache.get(turn.tenant_id, turn.parent_id)
        if (trail := of_turn(turn, parent)) is not None:
            self._cache.put(turn.tenant_id, trail)

    async def end_session(self, tenant_id: UUID, session_id: UUID, reason: str) -> bool:
        """Close a session; whether it was open. Turns that nothing followed get a verdict."""
        closed: int = await self._database.fetchval(_END_SESSION, reason, tenant_id, session_id)
        return closed > 0

    async def close_idle(self, timeout_s: float, limit: int = 500) -> int:
        """Close sessions not seen for `timeout_s`, at most `limit` of them; how many."""
        closed: int = await self._database.fetchval(_CLOSE_IDLE, "idle", timeout_s, limit)
        return closed


def _candidate(row: asyncpg.Record) -> Candidate:
    values: dict[str, Any] = dict(row)
    return Candidate(
        turn_id=values.pop("id"),
        kind=TurnKind(values.pop("kind")),
        finish_reason=FinishReason(values.pop("finish_reason")),
        **values,
    )
