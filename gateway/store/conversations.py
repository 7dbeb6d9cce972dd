"""Conversations that clients continue or read by the id of a turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

import asyncpg

from gateway.errors import StoreUnavailable
from gateway.records import Conversation, Exchanged, FinishReason, Message, Usage
from gateway.store.database import Database, seconds

#: The turn itself, unless its client asked for it not to be kept for reading.
_TURN = f"""
SELECT t.id, t.model, {seconds("t.created_at")} AS created_at, t.finish_reason, t.sampling,
    t.tools, t.prompt_len, t.completion_len, t.cached_tokens
FROM turns t
WHERE t.tenant_id = $1 AND t.id = $2 AND t.dialect = $3 AND t.finish_reason <> 'abort'
  AND {{kept}}
"""  # noqa: S608 - made of constants

_REPLIES = """
SELECT t.id, t.reply FROM turns t
WHERE t.tenant_id = $1 AND t.id = ANY($2::uuid[]) AND t.dialect = $3 AND t.finish_reason <> 'abort'
  AND {kept}
"""

#: It and its ancestors, the first of the conversation first. Depths shrink on the way up, so a
#: chain that names itself as its own ancestor ends all the same.
_CHAIN = """
WITH RECURSIVE chain AS (
    SELECT id, parent_id, messages, reply, depth, 0 AS up FROM turns
    WHERE tenant_id = $1 AND id = $2
    UNION ALL
    SELECT t.id, t.parent_id, t.messages, t.reply, t.depth, chain.up + 1
    FROM chain JOIN turns t ON t.id = chain.parent_id AND t.depth < chain.depth
        AND t.tenant_id = $1
)
SELECT id, parent_id, messages, reply FROM chain ORDER BY up DESC
"""

_FORGET = """
UPDATE turns SET response_store = false
WHERE tenant_id = $1 AND id = $2 AND dialect = $3 AND response_store AND finish_reason <> 'abort'
RETURNING id
"""


class ConversationStore:
    """Reads whole conversations, inside one tenant. Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def _knows(self) -> bool:
        """Whether the schema says what clients want kept: not before revision 0002."""
        return self._database.revision > "0001"

    @property
    def _kept(self) -> str:
        return "t.response_store" if self._knows else "true"

    async def find(self, tenant_id: UUID, turn_id: UUID, dialect: str) -> Conversation | None:
        """The conversation that ends in a turn's reply.

        None where the turn may not be read: unknown, of another dialect, cut off, or not to be
        kept; or where an ancestor of it is not stored (yet).
        """
        query = _TURN.format(kept=self._kept)
        turn = await self._database.fetchrow(query, tenant_id, turn_id, dialect)
        if turn is None:
            return None
        rows = await self._database.fetch(_CHAIN, tenant_id, turn_id)
        if rows[0]["parent_id"] is not None:
            return None
        return _conversation(turn, rows)

    async def replies(
        self, tenant_id: UUID, turn_ids: Collection[UUID], dialect: str
    ) -> dict[UUID, Message]:
        """Those of the turns' replies that may be read."""
        query = _REPLIES.format(kept=self._kept)
        rows = await self._database.fetch(query, tenant_id, list(turn_ids), dialect)
        return {row["id"]: row["reply"] for row in rows}

    async def forget(self, tenant_id: UUID, turn_id: UUID, dialect: str) -> bool:
        """Let a turn be read no more by its id; whether it could be. It stays captured.

        Raises StoreUnavailable too while the database has not been upgraded to revision 0002.
        """
        if not self._knows:
            raise StoreUnavailable("the database must be upgraded before responses are deleted")
        found = await self._database.fetchval(_FORGET, tenant_id, turn_id, dialect)
        return found is not None


def _conversation(turn: asyncpg.Record, rows: Sequence[asyncpg.Record]) -> Conversation:
    return Conversation(
        turn_id=turn["id"],
        model=turn["model"],
        created_at=turn["created_at"],
        finish_reason=FinishReason(turn["finish_reason"]),
        sampling=turn["sampling"],
        tools=tuple(turn["tools"]),
        usage=Usage(
            prompt_tokens=turn["prompt_len"],
            completion_tokens=turn["completion_len"],
            cached_tokens=turn["cached_tokens"],
        ),
        turns=tuple(
            Exchanged(turn_id=row["id"], messages=tuple(row["messages"]), reply=row["reply"])
            for row in rows
        ),
    )
