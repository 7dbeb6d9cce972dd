"""Why the turns of a session are what they are: the decisions, without a word of what was said."""

from __future__ import annotations

from typing import Any
from uuid import UUID

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

_TURNS = f"""
SELECT t.id, t.parent_id, t.depth, t.resolve_rule, t.branch_reason, t.retry_of, t.kind,
    t.kind_rule, t.kind_confidence::float8 AS confidence, {{delivered}} AS delivered,
    t.prompt_len, t.shared_len, t.finish_reason, t.trainable, t.untrainable_reason,
    jsonb_array_length(t.messages) AS new_messages, n.role AS next_role,
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
    delivered = "finish_reason <> 'abort'" if database.revision == "0001" else "t.delivered"
    sessions = [dict(row) for row in await database.fetch(_SESSIONS, _uuid(name), name)]
    for session in sessions:
        rows = await database.fetch(_TURNS.format(delivered=delivered), session["id"])
        numbers = {row["id"]: number for number, row in enumerate(rows, 1)}
        session["turns"] = [_turn(dict(row), numbers) for row in rows]
    return sessions


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
