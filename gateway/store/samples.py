"""Samples: judged turns on their way into a training step, each taken at most once.

ready ──lease──▶ leased ──PolicyStore.advance──▶ trained
  │                 └──release, or a new leader──▶ ready
  └──drop──▶ dropped (also from leased)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from uuid import UUID

import asyncpg

from gateway.errors import StoreError
from gateway.records import FinishReason, SampleHead, Teaching, TrainingSample, VersionSpan
from gateway.store.ancestry import drop_strays
from gateway.store.backlog import cut_backlog
from gateway.store.database import Database, seconds
from gateway.store.fence import hold_epoch
from gateway.store.packing import unpack_kept, unpack_logprobs
from gateway.store.siblings import GROUP, open_groups
from gateway.store.teachings import latest_teachings
from gateway.store.trails import CHAIN, assemble
from gateway.store.verdicts import put_verdict

#: The rule that gave a turn its score, and its group.
_ORIGIN = f"""
    (SELECT j.rule FROM judgements j WHERE j.turn_id = s.turn_id AND j.state = 'done'
        ORDER BY j.round DESC LIMIT 1) AS rule,
    {GROUP} AS "group"
"""  # noqa: S608 - made of constants

_WINDOW = f"""
SELECT s.id, s.turn_id, s.session_id, s.score, s.version_min,
    {seconds("s.arrived_at")} AS arrived_at, {_ORIGIN},
    EXISTS (SELECT FROM teachings e WHERE e.turn_id = s.turn_id AND e.round = (
        SELECT max(j.round) FROM judgements j WHERE j.turn_id = s.turn_id AND j.state = 'done'
    )) AS taught,
    EXISTS (SELECT FROM samples o
        WHERE o.turn_id = s.turn_id AND o.lineage_id = s.lineage_id AND o.id <> s.id
          AND (o.state = 'trained'
            OR o.state IN ('ready', 'leased') AND (o.created_at, o.id) < (s.created_at, s.id))
    ) AS repeated,
    extract(epoch FROM s.arrived_at - t.created_at)::float8 AS delay_s
FROM samples s JOIN lineages l ON l.id = s.lineage_id JOIN turns t ON t.id = s.turn_id
WHERE s.lineage_id = $1
  AND (s.state = 'ready' OR (s.state = 'leased' AND s.lease_epoch < l.epoch))
ORDER BY s.arrived_at, s.id LIMIT $2
"""  # noqa: S608 - made of constants

_ANCESTORS = """
WITH RECURSIVE line AS (
    SELECT version, parent_version, 1 AS place FROM policies
    WHERE lineage_id = $1 AND version = $2
    UNION ALL
    SELECT p.version, p.parent_version, c.place + 1 FROM policies p JOIN line c
        ON p.lineage_id = $1 AND p.version = c.parent_version
    WHERE c.place < $3
)
SELECT version FROM line ORDER BY place
"""

# Stale ones hold no place: they would be dropped with their verdict.
_WAITING = f"""
SELECT {seconds("coalesce(n.arrived_at, j.created_at)")} AS arrived_at
FROM judgements j JOIN turns t ON t.id = j.turn_id
LEFT JOIN next_states n ON n.turn_id = t.id
WHERE j.state IN ('queued', 'leased') AND t.lineage_id = $1 AND t.kind = 'main' AND t.trainable
  AND t.version_min >= $2 AND NOT EXISTS (SELECT FROM samples s WHERE s.turn_id = t.id)
  AND coalesce(n.arrived_at, j.created_at) >= to_timestamp($4)
ORDER BY 1 LIMIT $3
"""  # noqa: S608

_LEASE = """
UPDATE samples SET state = 'leased', lease_epoch = $2
WHERE lineage_id = $1 AND id = ANY($3::uuid[])
  AND (state = 'ready' OR (state = 'leased' AND lease_epoch <= $2))
"""

_LOAD = f"""
SELECT s.id, s.turn_id, s.session_id, s.score, s.weight, t.reply, {_ORIGIN}, t.logprobs, t.kept,
    t.depth, t.spans, t.finish_reason,
    coalesce((t.sampling ->> 'temperature')::float8, 1) AS temperature,
    {seconds("s.arrived_at")} AS arrived_at,
    concat_ws(':', coalesce(v.key_id::text, s.session_id::text), v.end_user) AS who
FROM samples s JOIN turns t ON t.id = s.turn_id LEFT JOIN sessions v ON v.id = s.session_id
WHERE s.id = ANY($1::uuid[]) ORDER BY s.arrived_at, s.id
"""  # noqa: S608

_DROP = """
UPDATE samples s SET state = 'dropped', reason = $4, version_lag = d.lag
FROM unnest($3::uuid[], $5::int8[]) AS d(id, lag)
WHERE s.id = d.id AND s.lineage_id = $1
  AND (s.state = 'ready' OR (s.state = 'leased' AND s.lease_epoch <= $2))
RETURNING s.turn_id
"""

_RELEASE = """
UPDATE samples SET state = 'ready', lease_epoch = NULL
WHERE lineage_id = $1 AND state = 'leased' AND lease_epoch <= $2
"""


class SampleStore:
    """What the trainer of a lineage takes from. Writes are fenced by the leader's epoch."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def window(self, lineage_id: UUID, limit: int) -> list[SampleHead]:
        """Samples that may be taken, the oldest arrival first.

        Those that a dead leader had leased are among them.
        """
        rows = await self._database.fetch(_WINDOW, lineage_id, limit)
        return [SampleHead(**dict(row)) for row in rows]

    async def waiting(
        self, lineage_id: UUID, version_min: int, limit: int, since: float = 0.0
    ) -> list[float]:
        """When turns arrived that have no verdict yet, the oldest first.

        Only those that may still be trained on, sampled by `version_min` or later, and that
        arrived at `since` or later.
        """
        rows = await self._database.fetch(_WAITING, lineage_id, version_min, limit, since)
        return [row["arrived_at"] for row in rows]

    async def open_groups(self, turn_ids: Sequence[UUID], within_s: float) -> frozenset[str]:
        """The groups of turns that have a member without a verdict, by `SampleHead.group`.

        Members are made at most `within_s` before the first of the turns.
        """
        return await open_groups(self._database, turn_ids, within_s)

    async def lease(self, lineage_id: UUID, epoch: int, ids: Sequence[UUID]) -> None:
        """Take samples for a step. Raises NotLeader, StoreError where one is taken already."""
        async with self._database.transaction() as connection:
            await hold_epoch(connection, lineage_id, epoch)
            done = await connection.execute(_LEASE, lineage_id, epoch, list(ids))
            if done != f"UPDATE {len(ids)}":
                raise StoreError(f"not all of {len(ids)} samples are free to take")

    async def load(self, ids: Sequence[UUID]) -> list[TrainingSample]:
        """Samples with all their ids, the oldest arrival first.

        One whose chain has a gap is left out: its prompt is not known exactly. What a teacher said
        comes with them.
        """
        async with self._database.acquire() as connection:
            rows = await connection.fetch(_LOAD, list(ids))
            taught = await latest_teachings(connection, [row["turn_id"] for row in rows])
            chains = await connection.fetch(CHAIN, [row["turn_id"] for row in rows], None)
        trails = {leaf: assemble(chain) for leaf, chain in groupby(chains, lambda row: row["leaf"])}
        loaded = []
        for row in rows:
            trail = trails.get(row["turn_id"])
            if trail is not None:
                teaching = taught.get(row["turn_id"])
                loaded.append(_sample(row, trail.prompt_ids, trail.sampled_ids, teaching))
        return loaded

    async def drop(
        self,
        lineage_id: UUID,
        epoch: int,
        ids: Sequence[UUID],
        reason: str,
        lags: Sequence[int],
    ) -> int:
        """Give samples up for good, with a verdict for their turns; how many. Raises NotLeader."""
        async with self._database.transaction() as connection:
            await hold_epoch(connection, lineage_id, epoch)
            rows = await connection.fetch(_DROP, lineage_id, epoch, list(ids), reason, list(lags))
            for row in rows:
                await put_verdict(connection, row["turn_id"], "dropped", reason)
        return len(rows)

    async def ancestors(self, lineage_id: UUID, version: int, count: int) -> list[int]:
        """A version and those that it was trained from, newest first, at most `count`."""
        rows = await self._database.fetch(_ANCESTORS, lineage_id, version, count)
        return [row["version"] for row in rows]

    async def drop_strays(self, lineage_id: UUID, epoch: int) -> int:
        """Drop what was sampled by versions since rolled back; how many. Raises NotLeader."""
        async with self._database.transaction() as connection:
            await hold_epoch(connection, lineage_id, epoch)
            return await drop_strays(connection, lineage_id)

    async def cut(
        self, lineage_id: UUID, epoch: int, *, keep: int, beyond: int | None = None
    ) -> int:
        """Where more turns wait than `beyond` (default: `keep`), drop all but the newest `keep`.

        With a verdict for each, also for those not judged yet; how many. Raises NotLeader.
        """
        async with self._database.transaction() as connection:
            await hold_epoch(connection, lineage_id, epoch)
            return await cut_backlog(
                connection, lineage_id, keep, keep if beyond is None else beyond
            )

    async def release(self, lineage_id: UUID, epoch: int) -> int:
        """Give back what this leader, or an earlier one, has leased and not trained on."""
        done = await self._database.execute(_RELEASE, lineage_id, epoch)
        return int(done.rpartition(" ")[2])


def _sample(
    row: asyncpg.Record,
    prompt_ids: Sequence[int],
    sampled_ids: Sequence[int],
    teaching: Teaching | None,
) -> TrainingSample:
    return TrainingSample(
        id=row["id"],
        turn_id=row["turn_id"],
        session_id=row["session_id"],
        user=row["who"],
        score=row["score"],
        weight=row["weight"],
        prompt_ids=prompt_ids,
        sampled_ids=sampled_ids,
        logprobs=unpack_logprobs(row["logprobs"]),
        spans=tuple(VersionSpan(*span) for span in row["spans"]),
        temperature=row["temperature"],
        finish_reason=FinishReason(row["finish_reason"]),
        arrived_at=row["arrived_at"],
        rule=row["rule"],
        group=row["group"],
        depth=row["depth"],
        reply=row["reply"],
        teaching=teaching,
        kept=None if row["kept"] is None else unpack_kept(row["kept"]),
    )
