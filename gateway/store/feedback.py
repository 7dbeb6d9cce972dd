"""What feedback is about: turns and sessions by the names that clients know them by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.store.database import Database, seconds
from gateway.store.packing import scrub

#: Turns of one session that a word about it reaches, the latest ones.
MOST_TURNS = 10_000

# Choices of one request share all but their ids, which are in the order of the choices.
_CHOICES = """
SELECT c.id FROM turns t JOIN turns c ON c.session_id = t.session_id
    AND c.request_hash = t.request_hash AND c.created_at = t.created_at
    AND c.parent_id IS NOT DISTINCT FROM t.parent_id AND c.tenant_id = t.tenant_id
WHERE t.tenant_id = $1 AND t.id = $2 ORDER BY c.id
"""

_SESSION = """
SELECT id FROM sessions WHERE tenant_id = $1 AND (id = $2 OR external_id = $3)
ORDER BY id = $2 DESC NULLS LAST LIMIT 1
"""


def _given(revision: str) -> str:
    discount = "discount" if revision > "0002" else "NULL::real AS discount"
    return f"""
SELECT id, turn_id, score, {discount} FROM feedback
WHERE tenant_id = $1 AND idempotency_key = ANY($2::text[])
"""  # noqa: S608 - made of constants


def _members(revision: str) -> str:
    """Turns that stand: neither discarded by the user nor replaced by a retry."""
    stood = ""
    if revision > "0002":
        stood = """AND NOT EXISTS (
            SELECT FROM next_states n WHERE n.turn_id = t.id AND n.how = 'rolled_back')"""
    return f"""
SELECT t.id, t.kind, {seconds("t.created_at")} AS created_at FROM turns t
WHERE t.tenant_id = $1 AND t.session_id = $2 AND t.kind <> 'side' {stood}
  AND NOT EXISTS (SELECT FROM turns r WHERE r.session_id = $2 AND r.retry_of = t.id)
ORDER BY t.created_at DESC, t.id DESC LIMIT {MOST_TURNS}
"""  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A main-line turn, `distance` requests before the last one of its session."""

    turn_id: UUID
    distance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Feedback that was stored before under an idempotency key."""

    id: UUID
    turn_id: UUID
    score: float
    discount: float | None


class FeedbackStore:
    """Reads, inside one tenant. Every method raises StoreUnavailable where Postgres is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def choices(self, tenant_id: UUID, turn_id: UUID) -> list[UUID]:
        """The turn and those that answered the same request beside it, in order; none unknown."""
        rows = await self._database.fetch(_CHOICES, tenant_id, turn_id)
        return [row["id"] for row in rows]

    async def session(self, tenant_id: UUID, name: str) -> UUID | None:
        """A session by its id here, or by the name that its client gave it."""
        try:
            id_: UUID | None = UUID(name)
        except ValueError:
            id_ = None
        found: UUID | None = await self._database.fetchval(_SESSION, tenant_id, id_, scrub(name))
        return found

    async def main_line(self, tenant_id: UUID, session_id: UUID) -> list[Member]:
        """Main-line turns of a session, the last first. Choices of one request count as one place.

        Where none is known to be main-line yet, those that may become it.
        """
        sql = _members(self._database.revision)
        rows = await self._database.fetch(sql, tenant_id, session_id)
        kind = "main" if any(row["kind"] == "main" for row in rows) else "unknown"
        chosen = [row for row in rows if row["kind"] == kind]
        places = {
            at: place for place, at in enumerate(dict.fromkeys(r["created_at"] for r in chosen))
        }
        return [Member(turn_id=r["id"], distance=places[r["created_at"]]) for r in chosen]

    async def given(self, tenant_id: UUID, keys: Sequence[str]) -> list[Given]:
        """What was stored under any of the idempotency keys."""
        sql = _given(self._database.revision)
        rows = await self._database.fetch(sql, tenant_id, list(keys))
        return [Given(**dict(row)) for row in rows]
