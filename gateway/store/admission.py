"""What admission goes by: how much waits to be trained on, how fast it is, and who is alive."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Self
from uuid import UUID

import asyncpg

from gateway.store.database import Database, seconds

#: Workers that have not reported for so long are not there.
_ALIVE_S = 10.0
#: Steps that the pace and the batch are measured over.
_MEASURED = 8

# By how far they are behind. A sample that is too stale is as good as dropped; a turn that is
# judged again has its verdict already. Turns that wait for a next state are told apart.
_LINES = """
WITH training AS (SELECT id, live_version FROM lineages WHERE trains)
SELECT l.id, false AS waits, greatest(0, l.live_version - t.version_min) AS behind,
    count(DISTINCT t.id) AS turns
FROM judgements j JOIN turns t ON t.id = j.turn_id JOIN training l ON l.id = t.lineage_id
WHERE j.state IN ('queued', 'leased') AND t.kind = 'main' AND t.trainable
  AND l.live_version - t.version_min <= $1
  AND NOT EXISTS (SELECT FROM samples s WHERE s.turn_id = t.id)
  AND NOT EXISTS (SELECT FROM verdicts v WHERE v.turn_id = t.id)
GROUP BY 1, 3
UNION ALL
SELECT l.id, false, greatest(0, l.live_version - s.version_min), count(DISTINCT s.turn_id)
FROM samples s JOIN training l ON l.id = s.lineage_id
WHERE s.state IN ('ready', 'leased') AND l.live_version - s.version_min <= $1
GROUP BY 1, 3
UNION ALL
SELECT l.id, true, greatest(0, l.live_version - t.version_min), count(*)
FROM turns t JOIN training l ON l.id = t.lineage_id
WHERE t.id >= $2 AND t.kind IN ('main', 'unknown') AND t.trainable
  AND l.live_version - t.version_min <= $1
  AND NOT EXISTS (SELECT FROM next_states n WHERE n.turn_id = t.id)
  AND NOT EXISTS (SELECT FROM verdicts v WHERE v.turn_id = t.id)
GROUP BY 1, 3
"""

_STEPS = f"""
SELECT l.id, {seconds("now()")} AS now, array_agg(step.size ORDER BY step.to_version) AS sizes,
    array_agg(step.ended ORDER BY step.to_version) AS ends
FROM lineages l LEFT JOIN LATERAL (
    SELECT s.to_version, {seconds("p.created_at")} AS ended,
        (SELECT count(*) FROM samples x WHERE x.step_id = s.id) AS size
    FROM train_steps s
    JOIN policies p ON p.lineage_id = s.lineage_id AND p.version = s.to_version
    WHERE s.lineage_id = l.id ORDER BY s.to_version DESC LIMIT $1
) AS step ON true
WHERE l.trains GROUP BY l.id
"""  # noqa: S608 - made of constants

_TELL = """
UPDATE workers SET detail = detail || jsonb_build_object('running', $2::jsonb) WHERE id = $1
"""

_WORKERS = """
SELECT id, kind, detail FROM workers
WHERE kind IN ('gateway', 'judge', 'trainer')
  AND heartbeat_at > now() - make_interval(secs => $1)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """One lineage at one moment.

    `backlog` are trainable turns with a next state and no verdict, by the versions that they are
    behind, `waiting` those that may still get a next state, `elsewhere` those that other gateways
    are sampling. `batch` is the mean of the last steps' samples, `full_batch` what the
    trainer says it would take; None if unknown.
    """

    live: bool
    backlog: Mapping[int, int]
    waiting: int
    elsewhere: int = 0
    replicas: int = 1
    batch: float | None = None
    full_batch: int | None = None
    step_s: float | None = None
    since_s: float | None = None


class AdmissionStore:
    """Counts that all gateways share: a round trip or two each time they are asked for."""

    def __init__(self, database: Database, *, max_lag: int, idle_s: float) -> None:
        self._database = database
        self._max_lag, self._idle_s = max_lag, idle_s

    async def counts(
        self, worker_id: UUID, running: Mapping[UUID, int], now: float
    ) -> dict[UUID, Counts]:
        """Every lineage that trains, once it is told what this gateway (`worker_id`) is sampling.

        Raises StoreUnavailable.
        """
        # Ids of turns are UUIDs of version 7: none that was asked for since then is smaller.
        first = UUID(int=max(0, int((now - self._idle_s) * 1000)) << 80)
        told = {lineage.hex: count for lineage, count in running.items()}
        async with self._database.acquire() as connection:
            await connection.execute(_TELL, worker_id, told)
            workers = await connection.fetch(_WORKERS, _ALIVE_S)
            lines = await connection.fetch(_LINES, self._max_lag, first)
            steps = await connection.fetch(_STEPS, _MEASURED)
        pending: defaultdict[tuple[UUID, bool], Counter[int]] = defaultdict(Counter)
        for row in lines:
            pending[row["id"], row["waits"]][row["behind"]] += row["turns"]
        own = _Workers.of(workers, worker_id)
        return {row["id"]: _counts(row, pending, own) for row in steps}


@dataclass(frozen=True, slots=True)
class _Workers:
    """What those alive tell: trainers, the other gateways, and whether there is a judge."""

    trainers: list[Mapping[str, object]]
    others: list[Mapping[str, object]]
    judged: bool

    @classmethod
    def of(cls, rows: list[asyncpg.Record], own_id: UUID) -> Self:
        return cls(
            trainers=[row["detail"] for row in rows if row["kind"] == "trainer"],
            others=[r["detail"] for r in rows if r["kind"] == "gateway" and r["id"] != own_id],
            judged=any(row["kind"] == "judge" for row in rows),
        )


def _counts(
    row: asyncpg.Record, pending: Mapping[tuple[UUID, bool], Counter[int]], workers: _Workers
) -> Counts:
    lineage: str = row["id"].hex
    # One that is paused consumes nothing: there is no use in waiting for it.
    own = [
        one
        for one in workers.trainers
        if not _mapping(_mapping(one.get("lineages")).get(lineage, {"paused": True})).get("paused")
    ]
    batches = [size for one in own if (size := _number(one.get("batch")))]
    running = [_mapping(one.get("running")) for one in workers.others]
    # Of a lineage without a step there is one row of nulls.
    sizes = [size for size in row["sizes"] if size is not None]
    ends = [end for end in row["ends"] if end is not None]
    return Counts(
        live=workers.judged and bool(own),
        backlog=pending[row["id"], False],
        waiting=sum(pending[row["id"], True].values()),
        elsewhere=sum(_number(one.get(lineage)) for one in running),
        replicas=1 + len(workers.others),
        batch=mean(sizes) if sizes else None,
        full_batch=batches[0] if batches else None,
        step_s=median(later - earlier for earlier, later in pairwise(ends)) if ends[1:] else None,
        since_s=max(0.0, row["now"] - ends[-1]) if ends else None,
    )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
