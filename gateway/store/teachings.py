"""What teachers said of sampled ids, and what they need to know to say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from gateway.errors import StoreError
from gateway.records import Lesson, Message, Teaching
from gateway.store.conversations import CHAIN as CONVERSATION
from gateway.store.conversations import offered
from gateway.store.database import Database
from gateway.store.packing import (
    finite,
    pack_ids,
    pack_logprobs,
    scrub,
    unpack_ids,
    unpack_logprobs,
)
from gateway.store.trails import CHAIN, assemble

_TURN = "SELECT tenant_id, lineage_id FROM turns WHERE id = $1"

_PUT = """
INSERT INTO teachings (turn_id, round, tenant_id, teacher, lineage_id, version, model, hint,
    prompt_len, completion_len, top_k, logprobs, top_ids, top_logprobs)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT (turn_id, round) DO NOTHING
"""

# Only of the latest judgement: a later word may have taken the hint back.
_LATEST = """
SELECT t.* FROM unnest($1::uuid[]) AS wanted(turn_id)
CROSS JOIN LATERAL (
    SELECT j.turn_id, j.round FROM judgements j
    WHERE j.turn_id = wanted.turn_id AND j.state = 'done' ORDER BY j.round DESC LIMIT 1
) latest
JOIN teachings t ON t.turn_id = latest.turn_id AND t.round = latest.round
"""


class Teachings:
    """Every method raises StoreUnavailable where Postgres is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def lesson(self, turn_id: UUID) -> Lesson | None:
        """A turn with its whole conversation and ids.

        None where it came as text, or where an ancestor that it needs is not stored.
        """
        async with self._database.acquire() as connection:
            turn = await connection.fetchrow(_TURN, turn_id)
            if turn is None:
                return None
            tenant_id = turn["tenant_id"]
            trail = assemble(await connection.fetch(CHAIN, [turn_id], tenant_id))
            chain = await connection.fetch(CONVERSATION, tenant_id, turn_id)
        if trail is None or not trail.sampled_ids or chain[0]["parent_id"] is not None:
            return None
        messages: list[Message] = []
        for row in chain:
            messages += row["messages"]
            if row["id"] != turn_id:
                messages.append(row["reply"])
        return Lesson(
            turn_id=turn_id,
            lineage_id=turn["lineage_id"],
            messages=tuple(messages),
            tools=offered(chain),
            prompt_ids=trail.prompt_ids,
            sampled_ids=trail.sampled_ids,
        )


async def put_teaching(
    connection: asyncpg.Connection,
    turn_id: UUID,
    round_: int,
    tenant_id: UUID,
    teaching: Teaching,
) -> None:
    """Store a teaching beside its judgement. Raises StoreError for values that do not fit."""
    count, top = len(teaching.logprobs), len(teaching.top_ids[0]) if teaching.top_ids else 0
    flat_ids = [id_ for row in teaching.top_ids for id_ in row]
    flat_values = [value for row in teaching.top_logprobs for value in row]
    if not len(flat_ids) == len(flat_values) == top * count:
        raise StoreError("a teaching needs as many alternatives for each token")
    if not finite([*teaching.logprobs, *flat_values]):
        raise StoreError("a teacher's log-probability is not finite")
    await connection.execute(
        _PUT,
        turn_id,
        round_,
        tenant_id,
        teaching.teacher,
        teaching.lineage_id,
        teaching.version,
        scrub(teaching.model),
        scrub(teaching.hint),
        teaching.prompt_len,
        count,
        top,
        pack_logprobs(teaching.logprobs),
        pack_ids(flat_ids),
        pack_logprobs(flat_values),
    )


async def latest_teachings(
    connection: asyncpg.Connection, turn_ids: Sequence[UUID]
) -> Mapping[UUID, Teaching]:
    """The teachings of the turns' latest judgements, of those that have one."""
    rows = await connection.fetch(_LATEST, list(turn_ids))
    return {row["turn_id"]: _teaching(row) for row in rows}


def _teaching(row: asyncpg.Record) -> Teaching:
    top: int = row["top_k"]
    return Teaching(
        teacher=row["teacher"],
        lineage_id=row["lineage_id"],
        version=row["version"],
        model=row["model"],
        hint=row["hint"],
        prompt_len=row["prompt_len"],
        logprobs=unpack_logprobs(row["logprobs"]),
        top_ids=_rows(unpack_ids(row["top_ids"]), top),
        top_logprobs=_rows(unpack_logprobs(row["top_logprobs"]), top),
    )


def _rows(values: Sequence[Any], width: int) -> tuple[Sequence[Any], ...]:
    return tuple(values[at : at + width] for at in range(0, len(values), width)) if width else ()
