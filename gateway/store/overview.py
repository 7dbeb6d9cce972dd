"""Is it serving, capturing, judging, learning? Counts, and the reasons for what is missing."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from gateway.store.database import Database, seconds
from gateway.store.lineage_use import used_by
from gateway.store.periods import bounds

Found = dict[str, Any]

COUNTS = """
SELECT count(*) AS turns,
    count(*) FILTER (WHERE t.kind = 'main') AS main,
    count(*) FILTER (WHERE t.kind = 'side') AS side,
    count(*) FILTER (WHERE t.kind = 'unknown') AS unknown,
    count(*) FILTER (WHERE t.kind = 'main' AND t.trainable) AS trainable,
    count(*) FILTER (WHERE t.kind = 'main' AND n.turn_id IS NOT NULL) AS with_next_state,
    count(*) FILTER (WHERE t.kind = 'main' AND j.waiting) AS judging,
    count(*) FILTER (WHERE t.kind = 'main' AND j.scored) AS scored
FROM turns t
LEFT JOIN next_states n ON n.turn_id = t.id AND n.turn_id >= $2
LEFT JOIN LATERAL (
    SELECT bool_or(j.score IS NOT NULL) AS scored,
        bool_or(j.state IN ('queued', 'leased')) AS waiting
    FROM judgements j WHERE j.turn_id = t.id
) j ON true
WHERE t.id >= $2 AND ($1::uuid IS NULL OR t.tenant_id = $1)
"""

SAMPLE_STATES = """
SELECT s.state, count(*) AS samples FROM samples s JOIN turns t ON t.id = s.turn_id
WHERE s.turn_id >= $2 AND t.id >= $2 AND ($1::uuid IS NULL OR t.tenant_id = $1)
GROUP BY s.state
"""

VERDICTS = """
SELECT v.outcome, v.reason, count(*) AS turns FROM verdicts v JOIN turns t ON t.id = v.turn_id
WHERE v.turn_id >= $2 AND t.id >= $2 AND ($1::uuid IS NULL OR t.tenant_id = $1)
GROUP BY v.outcome, v.reason ORDER BY 3 DESC
"""

_LINEAGES = f"""
SELECT l.id, l.name, l.base_model, l.kind, l.trains, l.live_version, l.epoch,
    (SELECT count(*) FROM samples s WHERE s.lineage_id = l.id AND s.state = 'ready') AS ready,
    (SELECT l.live_version - min(s.version_min) FROM samples s
        WHERE s.lineage_id = l.id AND s.state = 'ready') AS lag_max,
    (SELECT count(*) FROM samples s WHERE s.lineage_id = l.id AND s.state = 'leased') AS leased,
    (SELECT {seconds("max(t.ended_at)")} FROM train_steps t WHERE t.lineage_id = l.id)
        AS last_step_at,
    (SELECT count(*) FROM train_steps t WHERE t.lineage_id = l.id) AS steps
FROM lineages l
WHERE $1::uuid IS NULL OR l.id IN {used_by("$1")}
ORDER BY l.name
"""  # noqa: S608 - made of constants

_JOBS = f"""
SELECT count(*) FILTER (WHERE state = 'queued') AS queued,
    count(*) FILTER (WHERE state = 'leased') AS leased,
    {seconds("min(run_after) FILTER (WHERE state = 'queued')")} AS oldest_at
FROM judgements WHERE state IN ('queued', 'leased') AND ($1::uuid IS NULL OR tenant_id = $1)
"""  # noqa: S608

_SESSIONS_OPEN = """
SELECT count(*) FROM sessions WHERE status = 'open' AND ($1::uuid IS NULL OR tenant_id = $1)
"""

_WORKERS = f"""
SELECT id, kind, host, pid, revision, detail, {seconds("started_at")} AS started_at,
    {seconds("heartbeat_at")} AS heartbeat_at
FROM workers WHERE heartbeat_at > now() - make_interval(secs => $1) ORDER BY kind, started_at, id
"""  # noqa: S608


_LINEAGES_SEEN = f"""
SELECT id, name FROM lineages WHERE $1::uuid IS NULL OR id IN {used_by("$1")}
"""  # noqa: S608

#: What of a worker's report concerns nobody's data.
_SHOWN = (
    "batch", "claimed", "scored", "unscored", "failed", "dead", "lost", "in_hand", "health",
    "alarms", "spooling",
)  # fmt: skip


async def funnel(database: Database, tenant_id: UUID | None, since: float | None) -> Found:
    """How far turns got.

    `turns`, `main`, `side`, `unknown`, `trainable`, `with_next_state`, `judging` and `scored`
    count turns, `samples` samples by state, `trained` turns, and `dropped`, `untrainable` and
    `unscored` turns by reason.
    """
    first, _ = bounds(since, None)
    async with database.acquire() as connection:
        counts = await connection.fetchrow(COUNTS, tenant_id, first)
        states = await connection.fetch(SAMPLE_STATES, tenant_id, first)
        verdicts = await connection.fetch(VERDICTS, tenant_id, first)
    assert counts is not None
    found: Found = dict(counts)
    found["samples"] = dict.fromkeys(("ready", "leased", "trained", "dropped"), 0)
    found["samples"].update({row["state"]: row["samples"] for row in states})
    reasons: dict[str, dict[str, int]] = {
        name: {} for name in ("trained", "dropped", "untrainable", "unscored")
    }
    for row in verdicts:
        reasons[row["outcome"]][row["reason"]] = row["turns"]
    found["trained"] = sum(reasons.pop("trained").values())
    return {**found, **reasons}


async def lineages_of(database: Database, tenant_id: UUID) -> set[UUID]:
    """The lineages that a tenant uses."""
    return {row["id"] for row in await database.fetch(_LINEAGES_SEEN, tenant_id)}


async def status(database: Database, tenant_id: UUID | None, worker_timeout_s: float) -> Found:
    """`{"lineages": […], "jobs": {…}, "sessions_open": n, "workers": […]}`.

    What workers report is about all tenants, so one tenant sees only their kinds.
    """
    async with database.acquire() as connection:
        lineages = await connection.fetch(_LINEAGES, tenant_id)
        jobs = await connection.fetchrow(_JOBS, tenant_id)
        sessions_open = await connection.fetchval(_SESSIONS_OPEN, tenant_id)
        workers = await connection.fetch(_WORKERS, worker_timeout_s)
    assert jobs is not None
    listed = [dict(row) for row in workers]
    if tenant_id is not None:
        listed = [{"id": one["id"], "kind": one["kind"]} for one in listed]
    return {
        "lineages": [dict(row) for row in lineages],
        "jobs": dict(jobs),
        "sessions_open": sessions_open,
        "workers": listed,
    }


async def workers(database: Database, tenant_id: UUID | None, within_s: float) -> list[Found]:
    """Processes that reported within the last `within_s`, with what they say of themselves.

    `report` is what is no tenant's: figures and alarms of a judge, whether turns are spooled, and
    of a trainer the lineages that a tenant's keys name. Hosts are for the operator alone.
    """
    async with database.acquire() as connection:
        rows = await connection.fetch(_WORKERS, within_s)
        seen = await connection.fetch(_LINEAGES_SEEN, tenant_id)
    lineages = {row["id"].hex: row["name"] for row in seen}
    found = [dict(row) for row in rows]
    for worker in found:
        worker["report"] = _report(worker.pop("detail"), lineages)
        if tenant_id is not None:
            del worker["host"], worker["pid"]
    return found


def _report(detail: Found, lineages: Found) -> Found:
    shown = {name: detail[name] for name in _SHOWN if name in detail}
    if isinstance(own := detail.get("lineages"), dict):
        shown["lineages"] = {lineages[key]: one for key, one in own.items() if key in lineages}
    return shown
