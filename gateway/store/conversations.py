"""Conversations that clients continue or read by the id of a turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from gateway.records import (
    INSTRUCTIONS,
    SAME_TOOLS,
    Conversation,
    Exchanged,
    FinishReason,
    Message,
    Usage,
)
from gateway.resolve.chain import HALF
from gateway.store.database import Database, seconds
from gateway.store.packing import unpack_ids, unpack_logprobs, unpack_top

#: The turn itself, unless its client asked for it not to be kept for reading.
_TURN = f"""
SELECT t.id, t.model, {seconds("t.created_at")} AS created_at, t.finish_reason, t.sampling,
    t.prompt_len, t.completion_len, t.cached_tokens, %s
FROM turns t
WHERE t.tenant_id = $1 AND t.id = $2 AND t.dialect = $3 AND t.finish_reason <> 'abort'
  AND t.response_store
"""  # noqa: S608 - made of constants

_REPLIES = """
SELECT t.id, t.reply FROM turns t
WHERE t.tenant_id = $1 AND t.id = ANY($2::uuid[]) AND t.dialect = $3 AND t.finish_reason <> 'abort'
  AND t.response_store
"""

#: It and its ancestors, the first of the conversation first. Depths shrink on the way up, so a
#: chain that names itself as its own ancestor ends all the same.
CHAIN = """
WITH RECURSIVE chain AS (
    SELECT id, parent_id, messages, reply, tools, depth, 0 AS up FROM turns
    WHERE tenant_id = $1 AND id = $2
    UNION ALL
    SELECT t.id, t.parent_id, t.messages, t.reply, t.tools, t.depth, chain.up + 1
    FROM chain JOIN turns t ON t.id = chain.parent_id AND t.depth < chain.depth
        AND t.tenant_id = $1
)
SELECT id, parent_id, messages, reply, tools FROM chain ORDER BY up DESC
"""

#: What revision 0003 added.
_ADDED = """t.reasoning_tokens, t.response_fields,
    CASE WHEN t.response_fields ? 'include' THEN t.sampled_ids END AS sampled_ids,
    CASE WHEN t.response_fields ? 'include' THEN t.logprobs END AS logprobs"""
_NOT_YET = """0 AS reasoning_tokens, NULL::jsonb AS response_fields,
    NULL::bytea AS sampled_ids, NULL::bytea AS logprobs"""

#: The instructions of the turn $3, where they stand once for several turns $2 of its chain: those
#: whose system messages are the same have the same ones.
_INSTRUCTIONS = f"""
SELECT found.said FROM (
    SELECT t.depth, CASE
        WHEN jsonb_typeof(t.response_fields -> '{INSTRUCTIONS}') = 'string'
            THEN t.response_fields ->> '{INSTRUCTIONS}'
        WHEN t.messages -> 0 -> '{INSTRUCTIONS}' = 'true' THEN t.messages -> 0 ->> 'content'
    END AS said
    FROM turns t
    WHERE t.tenant_id = $1 AND t.id = ANY($2::uuid[]) AND substr(t.tools_hash, 1, {HALF}) = (
        SELECT substr(o.tools_hash, 1, {HALF}) FROM turns o WHERE o.tenant_id = $1 AND o.id = $3
    )
) found
WHERE found.said IS NOT NULL ORDER BY found.depth DESC LIMIT 1
"""  # noqa: S608 - made of constants

_FORGET = """
UPDATE turns SET response_store = false%s
WHERE tenant_id = $1 AND id = $2 AND dialect = $3 AND response_store AND finish_reason <> 'abort'
RETURNING id
"""


class ConversationStore:
    """Reads whole conversations, inside one tenant. Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant_id: UUID, turn_id: UUID, dialect: str) -> Conversation | None:
        """The conversation that ends in a turn's reply.

        None where the turn may not be read: unknown, of another dialect, cut off, or not to be
        kept; or where an ancestor of it is not stored (yet).
        """
        sql = _TURN % (_ADDED if self._database.revision >= "0003" else _NOT_YET)
        turn = await self._database.fetchrow(sql, tenant_id, turn_id, dialect)
        if turn is None:
            return None
        rows = await self._database.fetch(CHAIN, tenant_id, turn_id)
        if rows[0]["parent_id"] is not None:
            return None
        fields = turn["response_fields"]
        if fields is not None and fields.get(INSTRUCTIONS) is True:
            ids = [row["id"] for row in rows]
            said = await self._database.fetchval(_INSTRUCTIONS, tenant_id, ids, turn_id)
            fields[INSTRUCTIONS] = said
        return _conversation(turn, rows)

    async def replies(
        self, tenant_id: UUID, turn_ids: Collection[UUID], dialect: str
    ) -> dict[UUID, Message]:
        """Those of the turns' replies that may be read."""
        rows = await self._database.fetch(_REPLIES, tenant_id, list(turn_ids), dialect)
        return {row["id"]: row["reply"] for row in rows}

    async def forget(self, tenant_id: UUID, turn_id: UUID, dialect: str) -> bool:
        """Let a turn be read no more by its id; whether it could be. It stays captured."""
        sql = _FORGET % (", response_fields = NULL" if self._database.revision >= "0003" else "")
        found = await self._database.fetchval(sql, tenant_id, turn_id, dialect)
        return found is not None


def offered(chain: Sequence[asyncpg.Record]) -> tuple[Mapping[str, Any], ...]:
    """The tools of the last turn of a chain, which may stand at the turn that first had them."""
    found = next((row["tools"] for row in reversed(chain) if row["tools"] != list(SAME_TOOLS)), ())
    return tuple(found)


def _conversation(turn: asyncpg.Record, rows: Sequence[asyncpg.Record]) -> Conversation:
    fields = turn["response_fields"]
    return Conversation(
        turn_id=turn["id"],
        model=turn["model"],
        created_at=turn["created_at"],
        finish_reason=FinishReason(turn["finish_reason"]),
        sampling=turn["sampling"],
        tools=offered(rows),
        usage=Usage(
            prompt_tokens=turn["prompt_len"],
            completion_tokens=turn["completion_len"],
            cached_tokens=turn["cached_tokens"],
            reasoning_tokens=turn["reasoning_tokens"],
        ),
        turns=tuple(
            Exchanged(turn_id=row["id"], messages=tuple(row["messages"]), reply=row["reply"])
            for row in rows
        ),
        response_fields=fields,
        sampled_ids=unpack_ids(turn["sampled_ids"] or b""),
        logprobs=unpack_logprobs(turn["logprobs"] or b""),
        top=unpack_top(fields["top"]) if fields is not None and "top" in fields else (),
    )
