"""Why the turns of a session are what they are: the decisions, without a word of what was said."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from gateway.errors import NotFound
from gateway.store.database import Database, seconds

Found = dict[str, Any]

_MOST_TURNS = 10_000

#: By its id, the id of one of its turns, or its client's own name for it, in whatever tenant.
_SESSIONS = f"""
SELECT s.id, t.name AS tenant, s.external_id, s.client, s.model, s.resolved_by, s.ambiguous,
    s.parent_session_id, s.status, s.end_reason, {seconds("s.first_seen")} AS first_seen,
    {seconds("s.last_seen")} AS last_seen
FROM sessions s LEFT JOIN tenants t ON t.id = s.tenant_id
WHERE s.id = $1 OR s.external_id = $2 OR s.id = (SELECT session_id FROM turns WHERE id = $1)
ORDER BY s.last_seen DESC
"""  # noqa: S608 - made of constants

_SESSION_OF = "SELECT session_id FROM turns WHERE tenant_id = $1 AND id = $2"

_TURNS = f"""
SELECT t.id, t.parent_id, t.depth, t.resolve_rule, t.branch_reason, t.retry_of, t.kind,
    t.kind_rule, t.kind_confidence::float8 AS confidence, t.delivered,
    t.prompt_len, t.shared_len, t.finish_reason, t.finish_detail, t.trainable, t.untrainable_reason,
    jsonb_array_length(t.messages) AS new_messages, n.role AS next_role, {{how}} AS next_how,
    v.outcome, v.reason, {seconds("t.created_at")} AS created_at
FROM turns t LEFT JOIN next_states n ON n.turn_id = t.id
LEFT JOIN verdicts v ON v.turn_id = t.id
WHERE t.session_id = $1 ORDER BY t.created_at, t.id LIMIT {_MOST_TURNS}
"""  # noqa: S608


async def explained(database: Database, name: str) -> list[Found]:
    """Sessions of a name with their `turns`, the one seen last first. Raises StoreUnavailable.

    A turn's `number` counts from 1, `parent` and `retry_of` are numbers too, or ids where that
    turn is of another session.
    """
    sessions = [dict(row) for row in await database.fetch(_SESSIONS, _uuid(name), name)]
    for session in sessions:
        session["turns"] = await _turns(database, session["id"])
    return sessions


async def explained_turn(database: Database, tenant_id: UUID, turn_id: UUID) -> Found:
    """The same of one turn of a tenant, with its `session_id`. Raises NotFound."""
    session_id = await database.fetchval(_SESSION_OF, tenant_id, turn_id)
    for turn in () if session_id is None else await _turns(database, session_id):
        if turn["id"] == turn_id:
            return {**turn, "session_id": session_id}
    raise NotFound("There is no such turn.")


async def _turns(database: Database, session_id: UUID) -> list[Found]:
    how = "n.how" if database.revision > "0002" else "CASE WHEN n.role <> '' THEN 'continued' END"
    rows = await database.fetch(_TURNS.format(how=how), session_id)
    numbers = {row["id"]: number for number, row in enumerate(rows, 1)}
    return [_turn(dict(row), numbers) for row in rows]


def _turn(turn: Found, numbers: dict[UUID, int]) -> Found:
    parent_id, retry_of = turn.pop("parent_id"), turn.pop("retry_of")
    return {
        "number": numbers[turn["id"]],
        "parent": numbers.get(parent_id, parent_id),
        "retry_of": numbers.get(retry_of, retry_of),
        **turn,
    }


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
