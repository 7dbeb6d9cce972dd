"""Turns that were judged, with what a judge may see of them and the score that they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from gateway.records import FeedbackRecord, FinishReason, Message
from gateway.store.database import Database

# The latest finished round of each turn.
_JUDGED = """
SELECT t.id AS turn_id, t.session_id, t.messages AS request, t.reply, t.finish_reason,
    coalesce(n.messages, '[]') AS next_state, coalesce(n.how, 'continued') AS how,
    j.judge, j.rule, j.score, j.hint,
    coalesce((
        SELECT jsonb_agg(jsonb_build_object('id', f.id, 'tenant_id', f.tenant_id,
            'turn_id', f.turn_id, 'score', f.score, 'text', f.text, 'source', f.source,
            'session_id', f.session_id, 'discount', f.discount)
            ORDER BY f.created_at, f.id)
        FROM feedback f WHERE f.turn_id = t.id
    ), '[]') AS feedback
FROM turns t LEFT JOIN next_states n ON n.turn_id = t.id
CROSS JOIN LATERAL (
    SELECT * FROM judgements j WHERE j.turn_id = t.id AND j.state = 'done'
    ORDER BY j.round DESC LIMIT 1
) j
"""

_OF_SESSION = f"{_JUDGED} WHERE t.session_id = $1 ORDER BY t.id LIMIT $2"
_SINCE = f"{_JUDGED} WHERE t.created_at >= to_timestamp($1) ORDER BY t.id LIMIT $2"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTurn:
    """`score` None: it was judged, and nothing could be said."""

    turn_id: UUID
    session_id: UUID
    request: tuple[Message, ...]
    reply: Message
    next_state: tuple[Message, ...]
    feedback: tuple[FeedbackRecord, ...]
    finish_reason: FinishReason
    judge: str | None
    rule: str | None
    score: float | None
    hint: str | None
    how: str = "continued"


class JudgedTurns:
    """Reads of judged turns, the oldest first. Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_session(self, session_id: UUID, limit: int) -> list[JudgedTurn]:
        return [_turn(row) for row in await self._database.fetch(_OF_SESSION, session_id, limit)]

    async def since(self, time: float, limit: int) -> list[JudgedTurn]:
        """Turns served since `time`, in seconds since the epoch."""
        return [_turn(row) for row in await self._database.fetch(_SINCE, time, limit)]


def _turn(row: asyncpg.Record) -> JudgedTurn:
    values: dict[str, Any] = dict(row)
    return JudgedTurn(
        request=tuple(values.pop("request")),
        next_state=tuple(values.pop("next_state")),
        feedback=tuple(_feedback(said) for said in values.pop("feedback")),
        finish_reason=FinishReason(values.pop("finish_reason")),
        **values,
    )


def _feedback(said: dict[str, Any]) -> FeedbackRecord:
    names = ("id", "tenant_id", "turn_id", "session_id")
    ids = {name: UUID(said[name]) for name in names if said[name] is not None}
    return FeedbackRecord(**{**said, **ids})
