"""What operators read: sessions with their turns, versions, steps and swaps, as plain dicts.

Times are seconds since the epoch. `tenant_id` None means every tenant; with one, nothing of
another is seen.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

import asyncpg

from gateway.errors import InvalidRequest
from gateway.store.database import Database, seconds
from gateway.store.overview import funnel, status

Found = dict[str, Any]

_MOST_ROWS = 1000

_SESSIONS = f"""
SELECT s.id, s.tenant_id, s.external_id, s.key_id, k.name AS key_name, s.lineage_id,
    s.resolved_by, s.ambiguous, s.client, s.end_user, s.model, s.parent_session_id, s.status,
    s.end_reason, {seconds("s.first_seen")} AS first_seen, {seconds("s.last_seen")} AS last_seen,
    {seconds("s.ended_at")} AS ended_at, t.turns, t.main_turns, t.scored_turns, t.mean_score,
    (extract(epoch FROM s.last_seen) * 1000000)::int8 AS position
FROM sessions s LEFT JOIN api_keys k ON k.id = s.key_id
CROSS JOIN LATERAL (
    SELECT count(*) AS turns, count(*) FILTER (WHERE t.kind = 'main') AS main_turns,
        count(j.score) AS scored_turns, avg(j.score)::float8 AS mean_score
    FROM turns t LEFT JOIN LATERAL (
        SELECT score FROM judgements j WHERE j.turn_id = t.id AND j.state = 'done'
        ORDER BY j.round DESC LIMIT 1
    ) j ON true
    WHERE t.session_id = s.id
) t
"""  # noqa: S608 - made of constants

_PAGE = f"""{_SESSIONS}
WHERE ($1::uuid IS NULL OR s.tenant_id = $1)
  AND ($2::int8 IS NULL
    OR (s.last_seen, s.id) < ('epoch'::timestamptz + $2 * interval '1 microsecond', $3::uuid))
ORDER BY s.last_seen DESC, s.id DESC LIMIT $4
"""

_ONE_SESSION = f"{_SESSIONS} WHERE s.id = $1 AND ($2::uuid IS NULL OR s.tenant_id = $2)"

_TURNS = f"""
SELECT t.id, t.parent_id, t.depth, t.branch_reason, t.retry_of, t.kind, t.kind_rule,
    t.kind_confidence, t.resolve_rule, t.dialect, t.model, t.engine, t.message_count, t.messages,
    t.reply, t.prompt_len, t.shared_len, t.completion_len, t.spans, t.version_min, t.version_max,
    t.sampling, t.finish_reason, t.finish_detail, t.trainable, t.untrainable_reason,
    t.stream_mismatch, t.cached_tokens, t.queued_ms, t.first_token_ms, t.total_ms,
    {seconds("t.created_at")} AS created_at
FROM turns t WHERE t.session_id = $1 ORDER BY t.id LIMIT {_MOST_ROWS}
"""  # noqa: S608

_NEXT_STATES = f"""
SELECT turn_id, following_id, role, messages, {seconds("arrived_at")} AS arrived_at
FROM next_states WHERE turn_id = ANY($1::uuid[])
"""  # noqa: S608

_JUDGEMENTS = f"""
SELECT turn_id, round, state, attempts, judge, rule, score, confidence, reason, votes, hint,
    {seconds("done_at")} AS done_at
FROM judgements WHERE turn_id = ANY($1::uuid[]) ORDER BY turn_id, round
"""  # noqa: S608

_FEEDBACK = f"""
SELECT turn_id, id, score, text, source, {seconds("created_at")} AS created_at
FROM feedback WHERE turn_id = ANY($1::uuid[]) ORDER BY created_at
"""  # noqa: S608

_SAMPLES = """
SELECT turn_id, id, method, score, weight, state, reason, step_id, version_lag
FROM samples WHERE turn_id = ANY($1::uuid[]) ORDER BY created_at
"""

_VERDICTS = """
SELECT turn_id, outcome, reason, step_id, version FROM verdicts WHERE turn_id = ANY($1::uuid[])
"""

# A tenant sees the lineages that its keys name.
_LINEAGE_OF = """
($1::uuid IS NULL OR {column} = $1)
AND ($2::uuid IS NULL OR {column} IN (SELECT k.lineage_id FROM api_keys k WHERE k.tenant_id = $2))
"""

_POLICIES = f"""
SELECT p.lineage_id, l.name AS lineage, p.version, p.parent_version, p.kind, p.uri, p.checksum,
    p.state, p.reason, p.step_id, {seconds("p.created_at")} AS created_at,
    {seconds("p.live_at")} AS live_at, {seconds("p.ended_at")} AS ended_at
FROM policies p JOIN lineages l ON l.id = p.lineage_id
WHERE {_LINEAGE_OF.format(column="p.lineage_id")}
ORDER BY p.lineage_id, p.version DESC LIMIT $3
"""  # noqa: S608

_STEPS = f"""
SELECT s.id, s.lineage_id, s.epoch, s.from_version, s.to_version, s.metrics,
    (SELECT count(*) FROM samples a WHERE a.step_id = s.id) AS samples,
    (SELECT max(a.version_lag) FROM samples a WHERE a.step_id = s.id) AS lag_max,
    {seconds("s.started_at")} AS started_at, {seconds("s.ended_at")} AS ended_at
FROM train_steps s WHERE {_LINEAGE_OF.format(column="s.lineage_id")}
ORDER BY s.ended_at DESC, s.id DESC LIMIT $3
"""  # noqa: S608

_SWAPS = f"""
SELECT s.id, s.lineage_id, s.engine, s.from_version, s.to_version, s.outcome, s.detail, s.load_ms,
    s.pause_ms, s.probe_max_diff, {seconds("s.started_at")} AS started_at,
    {seconds("s.ended_at")} AS ended_at
FROM swaps s WHERE {_LINEAGE_OF.format(column="s.lineage_id")}
ORDER BY s.ended_at DESC, s.id DESC LIMIT $3
"""  # noqa: S608


class AdminReads:
    """Read models of the admin API. Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sessions(
        self, tenant_id: UUID | None, *, cursor: str | None = None, limit: int = 50
    ) -> Found:
        """`{"items": […], "next": cursor or None}`, those seen last first.

        Raises InvalidRequest for a cursor that was not given out.
        """
        position, last_id = (None, None) if cursor is None else _position(cursor)
        wanted = max(1, min(limit, _MOST_ROWS))
        rows = await self._database.fetch(_PAGE, tenant_id, position, last_id, wanted + 1)
        items = [dict(row) for row in rows[:wanted]]
        following = f"{items[-1]['position']}~{items[-1]['id']}" if len(rows) > wanted else None
        for item in items:
            del item["position"]
        return {"items": items, "next": following}

    async def session(
        self, tenant_id: UUID | None, session_id: UUID, *, content: bool = True
    ) -> Found | None:
        """A session with its turns: next state, judgements, feedback, samples and verdict of each.

        Without `content`, no words of users, models or judges; None where there is no such
        session.
        """
        async with self._database.acquire() as connection:
            row = await connection.fetchrow(_ONE_SESSION, session_id, tenant_id)
            if row is None:
                return None
            turns = [dict(turn) for turn in await connection.fetch(_TURNS, session_id)]
            ids = [turn["id"] for turn in turns]
            states = await _by_turn(connection, _NEXT_STATES, ids)
            judged = await _by_turn(connection, _JUDGEMENTS, ids)
            said = await _by_turn(connection, _FEEDBACK, ids)
            samples = await _by_turn(connection, _SAMPLES, ids)
            verdicts = await _by_turn(connection, _VERDICTS, ids)
        for turn in turns:
            key = turn["id"]
            turn["next_state"] = next(iter(states[key]), None)
            turn["judgements"] = judged[key]
            turn["feedback"] = said[key]
            turn["samples"] = samples[key]
            turn["verdict"] = next(iter(verdicts[key]), None)
            if not content:
                _strip(turn)
        found = dict(row)
        del found["position"]
        return {**found, "items": turns}

    async def policies(
        self, tenant_id: UUID | None, lineage_id: UUID | None = None, limit: int = 100
    ) -> list[Found]:
        """Versions, the newest of each lineage first."""
        return await self._list(_POLICIES, tenant_id, lineage_id, limit)

    async def train_steps(
        self, tenant_id: UUID | None, lineage_id: UUID | None = None, limit: int = 100
    ) -> list[Found]:
        """Training steps, the latest first."""
        return await self._list(_STEPS, tenant_id, lineage_id, limit)

    async def swaps(
        self, tenant_id: UUID | None, lineage_id: UUID | None = None, limit: int = 100
    ) -> list[Found]:
        """Engines moved from one version to another, the latest first."""
        return await self._list(_SWAPS, tenant_id, lineage_id, limit)

    async def funnel(self, tenant_id: UUID | None, since: float | None = None) -> Found:
        """How many turns got how far, and where the others ended. See `overview.funnel`."""
        return await funnel(self._database, tenant_id, since)

    async def status(self, tenant_id: UUID | None, worker_timeout_s: float = 15.0) -> Found:
        """What is served, waiting, trained and alive. See `overview.status`."""
        return await status(self._database, tenant_id, worker_timeout_s)

    async def _list(
        self, sql: str, tenant_id: UUID | None, lineage_id: UUID | None, limit: int
    ) -> list[Found]:
        wanted = max(1, min(limit, _MOST_ROWS))
        rows = await self._database.fetch(sql, lineage_id, tenant_id, wanted)
        return [dict(row) for row in rows]


async def _by_turn(
    connection: asyncpg.Connection, sql: str, turn_ids: list[UUID]
) -> defaultdict[UUID, list[Found]]:
    found: defaultdict[UUID, list[Found]] = defaultdict(list)
    for row in await connection.fetch(sql, turn_ids):
        values = dict(row)
        found[values.pop("turn_id")].append(values)
    return found


def _strip(turn: Found) -> None:
    """Take away what people, models and judges wrote."""
    del turn["messages"], turn["reply"]
    if turn["next_state"] is not None:
        del turn["next_state"]["messages"]
    for judgement in turn["judgements"]:
        del judgement["reason"], judgement["votes"], judgement["hint"]
    for said in turn["feedback"]:
        del said["text"]


def _position(cursor: str) -> tuple[int, UUID]:
    position, _, last_id = cursor.partition("~")
    try:
        found = int(position), UUID(last_id)
    except ValueError:
        raise InvalidRequest("The cursor is not one that was given out.", param="cursor") from None
    if not 0 <= found[0] < 2**53:
        raise InvalidRequest("The cursor is not one that was given out.", param="cursor")
    return found
