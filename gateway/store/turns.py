"""Turns and sessions as the gateway reads them while it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from gateway.records import Candidate, FinishReason, Trail, TurnKind, TurnRecord
from gateway.resolve import NamedSession
from gateway.store.database import Database, seconds
from gateway.store.packing import scrub
from gateway.store.trails import CHAIN, TrailCache, assemble, of_turn

#: Equal conversations of one tenant beyond these are told apart by nothing anyway.
_MOST_CANDIDATES = 64

_CACHE_BYTES = 64 * 1024 * 1024

# `{turns}` picks turns, bounded, before anything is joined to them: the planner is left no choice.
_CANDIDATES = """
SELECT t.id, t.session_id, t.lineage_id, s.key_id, t.chain_hash, t.depth, t.message_count, t.kind,
    t.tools_hash, t.finish_reason, {created_at} AS created_at,
    EXISTS (SELECT FROM turns c WHERE c.parent_id = t.id AND c.retry_of IS NULL) AS continued
FROM ({turns}) AS t JOIN sessions s ON s.id = t.session_id
"""

_TURNS_BY_CHAIN = f"""
SELECT * FROM turns WHERE tenant_id = $1 AND chain_hash = ANY($2::bytea[])
ORDER BY message_count DESC, id DESC LIMIT {_MOST_CANDIDATES}
"""  # noqa: S608 - made of constants

_TURNS_BY_REQUEST = f"""
SELECT * FROM turns
WHERE tenant_id = $1 AND request_hash = $3 AND created_at >= to_timestamp($4)
ORDER BY created_at DESC LIMIT {_MOST_CANDIDATES}
"""  # noqa: S608

_LAST_MAIN_TURN = """
SELECT * FROM turns WHERE session_id = $1 AND kind = 'main' ORDER BY id DESC LIMIT 1
"""


def _candidates(turns: str) -> str:
    return _CANDIDATES.format(turns=turns, created_at=seconds("t.created_at"))


FIND_CANDIDATES = f"{_candidates(_TURNS_BY_CHAIN)} ORDER BY t.message_count DESC, t.id DESC"

_FIND_BY_REQUEST = (
    f"{_candidates(_TURNS_BY_REQUEST)} WHERE s.key_id = $2 ORDER BY t.created_at DESC"
)

_LAST_MAIN = _candidates(_LAST_MAIN_TURN)

_BY_NAME = """
SELECT s.id, count(t.id) AS turns, coalesce(bool_or(t.tools <> '[]'), false) AS has_tools
FROM sessions s LEFT JOIN LATERAL (
    SELECT id, tools FROM turns WHERE session_id = s.id ORDER BY id DESC LIMIT 32
) t ON true
WHERE s.tenant_id = $1 AND s.external_id = $2 GROUP BY s.id
"""

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

    async def find_candidates(self, tenant_id: UUID, hashes: Sequence[bytes]) -> list[Candidate]:
        """Stored turns whose chain hash is one of `hashes`, the deepest first, the newest first.

        One indexed query whatever the number of hashes.
        """
        if not hashes:
            return []
        rows = await self._database.fetch(
            FIND_CANDIDATES, tenant_id, list(hashes), timeout_s=self._patience_s
        )
        return [_candidate(row) for row in rows]

    async def find_by_request(
        self, tenant_id: UUID, key_id: UUID, request_hash: bytes, since: float
    ) -> list[Candidate]:
        """Turns of a key that answered the same body since a time, the newest first."""
        rows = await self._database.fetch(_FIND_BY_REQUEST, tenant_id, key_id, request_hash, since)
        return [_candidate(row) for row in rows]

    async def last_main_turn(self, session_id: UUID) -> Candidate | None:
        row = await self._database.fetchrow(_LAST_MAIN, session_id)
        return _candidate(row) if row else None

    async def named_session(self, tenant_id: UUID, external_id: str) -> NamedSession:
        """The session that a client's own name means inside its tenant, by its latest turns."""
        row = await self._database.fetchrow(
            _BY_NAME, tenant_id, scrub(external_id), timeout_s=self._patience_s
        )
        if row is None:
            return NamedSession(id=None)
        return NamedSession(id=row["id"], turns=row["turns"], has_tools=row["has_tools"])

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

    def remember(self, turn: TurnRecord, parent: Trail | None = None) -> None:
        """Keep the ids of a turn that was just stored; its parent's where they are at hand."""
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
