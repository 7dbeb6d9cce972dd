"""Whole ids of a turn, put together from its chain, and a bounded memory of them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from uuid import UUID

import asyncpg

from gateway.records import FinishReason, Trail, TurnRecord, packed_ids
from gateway.store.packing import unpack_ids

#: Turns ($1) of a tenant ($2, NULL for any) and the ancestors that their ids begin with, each
#: turn's roots first.
CHAIN = """
WITH RECURSIVE chain AS (
    SELECT id, parent_id, shared_len, prompt_ids, sampled_ids, finish_reason, id AS leaf, 0 AS up
    FROM turns WHERE id = ANY($1::uuid[]) AND ($2::uuid IS NULL OR tenant_id = $2)
    UNION ALL
    SELECT t.id, t.parent_id, t.shared_len, t.prompt_ids, t.sampled_ids, t.finish_reason,
        chain.leaf, chain.up + 1
    FROM chain JOIN turns t ON t.id = chain.parent_id
    WHERE chain.shared_len > 0
)
SELECT * FROM chain ORDER BY leaf, up DESC
"""


def assemble(rows: Iterable[asyncpg.Record]) -> Trail | None:
    """The trail of the last row, from rows that lead to it; None where the chain has a gap.

    prompt = (parent's prompt + sampled)[:shared_len] + own prompt ids.
    """
    trail: Trail | None = None
    for row in rows:
        prompt = _extended(trail, row["shared_len"], unpack_ids(row["prompt_ids"]))
        if prompt is None:
            return None
        trail = Trail(
            turn_id=row["id"],
            prompt_ids=prompt,
            sampled_ids=unpack_ids(row["sampled_ids"]),
            finish_reason=FinishReason(row["finish_reason"]),
        )
    return trail


def of_turn(turn: TurnRecord, parent: Trail | None) -> Trail | None:
    """The trail of a turn that is being stored; None where it needs a parent that is not there."""
    prompt = _extended(parent, turn.shared_len, turn.prompt_ids)
    if prompt is None:
        return None
    return Trail(
        turn_id=turn.id,
        prompt_ids=prompt,
        sampled_ids=array("i", turn.sampled_ids),
        finish_reason=turn.finish_reason,
    )


class TrailCache:
    """The trails used last, bounded in turns and in bytes."""

    def __init__(self, turns: int, nbytes: int) -> None:
        self._turns = turns
        self._nbytes = nbytes
        self._held = 0
        self._trails: OrderedDict[tuple[UUID, UUID], Trail] = OrderedDict()

    def get(self, tenant_id: UUID, turn_id: UUID) -> Trail | None:
        trail = self._trails.get((tenant_id, turn_id))
        if trail is not None:
            self._trails.move_to_end((tenant_id, turn_id))
        return trail

    def put(self, tenant_id: UUID, trail: Trail) -> None:
        trails, key = self._trails, (tenant_id, trail.turn_id)
        if key in trails:
            self._held -= _bytes(trails.pop(key))
        trails[key] = trail
        self._held += _bytes(trail)
        while len(trails) > self._turns or self._held > self._nbytes:
            _, dropped = trails.popitem(last=False)
            self._held -= _bytes(dropped)

    def clear(self) -> None:
        self._trails.clear()
        self._held = 0

    def __len__(self) -> int:
        return len(self._trails)


def _bytes(trail: Trail) -> int:
    return 4 * (len(trail.prompt_ids) + len(trail.sampled_ids))


def _extended(parent: Trail | None, shared: int, ids: Sequence[int]) -> array[int] | None:
    if shared == 0:
        return packed_ids(ids)
    if parent is None or len(parent.prompt_ids) + len(parent.sampled_ids) < shared:
        return None
    whole = array("i", parent.prompt_ids[:shared])
    whole.extend(parent.sampled_ids[: shared - len(whole)])
    whole.extend(ids)
    return whole
