"""Turns with their histories, in the order in which they were made, a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from gateway.store.database import Database, seconds
from gateway.store.histories import add_histories, strip
from gateway.store.packing import unpack_ids, unpack_logprobs
from gateway.store.turn_filters import FILTERED, TurnFilters

Found = dict[str, Any]

#: Of one page, which is what is in memory at a time: turns, and their bytes as they are stored.
_PAGE = 100
_PAGE_BYTES = 4 * 1024 * 1024

_SESSION = ("external_id", "client", "end_user", "resolved_by", "ambiguous", "parent_session_id")

# What is out of line is not read for it.
_SIZES = f"""
SELECT t.id, pg_column_size(t.messages) + pg_column_size(t.tools) + pg_column_size(t.reply)
    + coalesce((SELECT pg_column_size(n.messages) FROM next_states n WHERE n.turn_id = t.id), 0)
    + CASE WHEN $16::bool THEN pg_column_size(t.prompt_ids) + pg_column_size(t.sampled_ids)
        + pg_column_size(t.logprobs) ELSE 0 END AS bytes
{FILTERED} AND ($17::uuid IS NULL OR t.id > $17)
ORDER BY t.id LIMIT {_PAGE}
"""  # noqa: S608 - made of constants

_NEXT = f"""
SELECT t.id, t.session_id, t.parent_id, t.depth, t.branch_reason, t.retry_of, t.kind, t.kind_rule,
    t.kind_confidence, t.resolve_rule, t.dialect, t.model, t.engine,
    encode(t.request_hash, 'hex') AS request_hash, encode(t.chain_hash, 'hex') AS chain_hash,
    encode(t.tools_hash, 'hex') AS tools_hash, t.message_count, t.messages, t.tools, t.reply,
    t.prompt_len, t.shared_len, t.completion_len, t.spans, t.version_min, t.version_max, t.sampling,
    t.finish_reason, t.finish_detail, t.trainable, t.untrainable_reason, t.stream_mismatch,
    t.cached_tokens, t.queued_ms, t.first_token_ms, t.total_ms, t.delivered,
    {seconds("t.created_at")} AS created_at, j.score::float8 AS score, j.rule,
    s.external_id, s.client, s.end_user, s.resolved_by, s.ambiguous, s.parent_session_id,
    s.model AS session_model, {seconds("s.first_seen")} AS first_seen,
    CASE WHEN $16::bool THEN t.prompt_ids END AS prompt_ids,
    CASE WHEN $16::bool THEN t.sampled_ids END AS sampled_ids,
    CASE WHEN $16::bool THEN t.logprobs END AS logprobs
{FILTERED} AND ($17::uuid IS NULL OR t.id > $17) AND t.id <= $18
ORDER BY t.id
"""


async def exported(
    database: Database,
    tenant_id: UUID,
    filters: TurnFilters,
    *,
    content: bool = True,
    ids: bool = False,
) -> AsyncIterator[list[Found]]:
    """Pages of `{"session", "turn", "score", "rule", "next_state", "judgements", …}`.

    No connection is held between pages, so that whoever reads slowly holds up nobody. What is
    stored meanwhile is among them if its id comes later. A page ends once it has enough bytes,
    however few turns they are. Raises StoreUnavailable.
    """
    last: UUID | None = None
    while True:
        async with database.acquire() as connection:
            asked = (tenant_id, *filters.values(), ids, last)
            sizes = await connection.fetch(_SIZES, *asked)
            if not sizes:
                return
            last = _last_of([dict(row) for row in sizes])
            turns = [dict(row) for row in await connection.fetch(_NEXT, *asked, last)]
            await add_histories(connection, turns)
        yield [_record(turn, content=content, ids=ids) for turn in turns]


def _last_of(sizes: Sequence[Mapping[str, Any]]) -> UUID:
    """The last turn of a page that begins with these: the first at which it is full."""
    total = 0
    for row in sizes:
        total += row["bytes"]
        if total >= _PAGE_BYTES:
            break
    found: UUID = row["id"]
    return found


def _record(turn: Found, *, content: bool, ids: bool) -> Found:
    if not content:
        strip(turn)
        del turn["tools"]
    session = {name: turn.pop(name) for name in _SESSION}
    session |= {
        "id": turn["session_id"],
        "model": turn.pop("session_model"),
        "first_seen": turn.pop("first_seen"),
    }
    history = {
        name: turn.pop(name)
        for name in ("score", "rule", "next_state", "judgements", "feedback", "samples", "verdict")
    }
    packed = {name: turn.pop(name) for name in ("prompt_ids", "sampled_ids", "logprobs")}
    if ids:
        turn["prompt_ids"] = list(unpack_ids(packed["prompt_ids"]))
        turn["sampled_ids"] = list(unpack_ids(packed["sampled_ids"]))
        turn["logprobs"] = [
            value if abs(value) < 1e30 else None for value in unpack_logprobs(packed["logprobs"])
        ]
    return {"session": session, "turn": turn, **history}
