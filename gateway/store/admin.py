"""What operators read: sessions with their turns, versions, steps and swaps, as plain dicts.

Times are seconds since the epoch. `tenant_id` None means every tenant; with one, nothing of
another is seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import asyncpg

from gateway.store.database import Database, seconds
from gateway.store.histories import add_histories, strip
from gateway.store.overview import funnel, status, workers
from gateway.store.packing import unpack_ids, unpack_logprobs
from gateway.store.pages import MOST_ROWS, POSITION, before, microseconds, page, position, wanted
from gateway.store.scores import Asked, By, scores
from gateway.store.staleness import staleness
from gateway.store.traffic import traffic

Found = dict[str, Any]

_SESSIONS = f"""
SELECT s.id, s.tenant_id, s.external_id, s.key_id, k.name AS key_name, s.lineage_id,
    s.resolved_by, s.ambiguous, s.client, s.end_user, s.model, s.parent_session_id, s.status,
    s.end_reason, {seconds("s.first_seen")} AS first_seen, {seconds("s.last_seen")} AS last_seen,
    {seconds("s.ended_at")} AS ended_at, t.turns, t.main_turns, t.scored_turns, t.mean_score,
    {microseconds("s.last_seen")} AS {POSITION}
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
  AND {before("s.last_seen", "s.id", "$2", "$3")}
  AND ($5::text IS NULL OR s.client = $5) AND ($6::text IS NULL OR s.external_id = $6)
  AND ($7::text IS NULL OR s.end_user = $7) AND ($8::text IS NULL OR s.status = $8)
  AND ($9::float8 IS NULL OR s.last_seen >= to_timestamp($9))
  AND ($10::float8 IS NULL OR s.first_seen < to_timestamp($10))
  AND ($11::float8 IS NULL OR t.mean_score >= $11)
  AND ($12::float8 IS NULL OR t.mean_score <= $12)
  AND ($13::int8 IS NULL OR EXISTS (SELECT FROM turns v
    WHERE v.session_id = s.id AND $13 BETWEEN v.version_min AND v.version_max))
ORDER BY s.last_seen DESC, s.id DESC LIMIT $4
"""

_ONE_SESSION = f"{_SESSIONS} WHERE s.id = $1 AND ($2::uuid IS NULL OR s.tenant_id = $2)"

_TURN = f"""
SELECT t.id, t.session_id, t.lineage_id, t.parent_id, t.depth, t.branch_reason, t.retry_of,
    t.kind, t.kind_rule,
    t.kind_confidence, t.resolve_rule, t.dialect, t.model, t.engine, t.message_count, t.messages,
    t.reply, t.prompt_len, t.shared_len, t.completion_len, t.spans, t.version_min, t.version_max,
    t.sampling, t.finish_reason, t.finish_detail, t.trainable, t.untrainable_reason,
    t.stream_mismatch, t.cached_tokens, t.queued_ms, t.first_token_ms, t.total_ms,
    {seconds("t.created_at")} AS created_at, 0 AS {POSITION}
FROM turns t
"""  # noqa: S608

_TURNS = f"""{_TURN}
WHERE t.session_id = $1 AND ($2::uuid IS NULL OR t.id > $2) ORDER BY t.id LIMIT $3
"""

_ONE_TURN = f"{_TURN} WHERE t.id = $1 AND ($2::uuid IS NULL OR t.tenant_id = $2)"

_IDS = "SELECT prompt_ids, sampled_ids, logprobs FROM turns WHERE id = $1"

_TAUGHT = "SELECT teacher, logprobs FROM teachings WHERE turn_id = $1 ORDER BY round DESC LIMIT 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilters:
    """What sessions must be; None is any. `name` is what the client calls it.

    They were seen at some time in [`since`, `until`) seconds, a token of them was sampled by
    `version`, and the mean score of their turns is within bounds.
    """

    client: str | None = None
    name: str | None = None
    end_user: str | None = None
    status: Literal["open", "closed"] | None = None
    since: float | None = None
    until: float | None = None
    version: int | None = None
    min_score: float | None = None
    max_score: float | None = None


class AdminReads:
    """Read models of the admin API. Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sessions(
        self,
        tenant_id: UUID | None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        filters: SessionFilters | None = None,
    ) -> Found:
        """`{"items": […], "next": cursor or None}`, those seen last first.

        Raises InvalidRequest for a cursor that was not given out.
        """
        filters = filters or SessionFilters()
        number, last_id = position(cursor)
        most = wanted(limit)
        rows = await self._database.fetch(
            _PAGE, tenant_id, number, last_id, most + 1, filters.client, filters.name,
            filters.end_user, filters.status, filters.since, filters.until, filters.min_score,
            filters.max_score, filters.version,
        )  # fmt: skip
        return page(rows, most, lambda row: row["id"])

    async def session(
        self,
        tenant_id: UUID | None,
        session_id: UUID,
        *,
        content: bool = True,
        cursor: str | None = None,
        limit: int = MOST_ROWS,
    ) -> Found | None:
        """A session with its turns: next state, judgements, feedback, samples and verdict of each.

        They come in the order in which they were asked for, `limit` of them at most; `next` names
        the last one where there are more. Without `content`, no words of users, models or judges;
        None where there is no such session.
        """
        _, last = position(cursor)
        most = wanted(limit)
        async with self._database.acquire() as connection:
            row = await connection.fetchrow(_ONE_SESSION, session_id, tenant_id)
            if row is None:
                return None
            rows = await connection.fetch(_TURNS, session_id, last, most + 1)
            turns = page(rows, most, lambda turn: turn["id"])
            await add_histories(connection, turns["items"])
        if not content:
            for turn in turns["items"]:
                strip(turn)
        found = dict(row)
        del found[POSITION]
        return found | turns

    async def has_session(self, tenant_id: UUID, session_id: UUID) -> bool:
        sql = "SELECT EXISTS (SELECT FROM sessions WHERE tenant_id = $1 AND id = $2)"
        found: bool = await self._database.fetchval(sql, tenant_id, session_id)
        return found

    async def turn(
        self, tenant_id: UUID | None, turn_id: UUID, *, content: bool = True, ids: bool = False
    ) -> Found | None:
        """A turn with its history; None where there is no such turn.

        With `ids`: `prompt_ids` (those after `shared_len`), `sampled_ids` and `logprobs` [R], and
        where a teacher scored them `teacher_logprobs` [R], None for each that is not finite.
        """
        async with self._database.acquire() as connection:
            row = await connection.fetchrow(_ONE_TURN, turn_id, tenant_id)
            if row is None:
                return None
            turn = dict(row)
            del turn[POSITION]
            await add_histories(connection, [turn])
            if ids:
                turn |= await self._ids(connection, turn_id)
        if not content:
            strip(turn)
        return turn

    async def _ids(self, connection: asyncpg.Connection, turn_id: UUID) -> Found:
        row = await connection.fetchrow(_IDS, turn_id)
        assert row is not None
        taught = None
        if self._database.revision > "0002":
            taught = await connection.fetchrow(_TAUGHT, turn_id)
        return {
            "prompt_ids": list(unpack_ids(row["prompt_ids"])),
            "sampled_ids": list(unpack_ids(row["sampled_ids"])),
            "logprobs": _finite(row["logprobs"]),
            "teacher": taught and taught["teacher"],
            "teacher_logprobs": taught and _finite(taught["logprobs"]),
        }

    async def scores(self, tenant_id: UUID | None, by: By, asked: Asked) -> Found:
        """Scores by time, version, tenant, client or tool. See `scores.scores`."""
        return await scores(self._database, tenant_id, by, asked)

    async def traffic(
        self, tenant_id: UUID | None, since: float, until: float, bucket_s: int
    ) -> list[Found]:
        """What is served, in steps of time. See `traffic.traffic`."""
        return await traffic(self._database, tenant_id, since, until, bucket_s)

    async def staleness(self, tenant_id: UUID | None, steps: int) -> list[Found]:
        """How far samples are behind. See `staleness.staleness`."""
        return await staleness(self._database, tenant_id, steps)

    async def workers(self, tenant_id: UUID | None, within_s: float) -> list[Found]:
        """Processes that reported lately. See `overview.workers`."""
        return await workers(self._database, tenant_id, within_s)

    async def funnel(self, tenant_id: UUID | None, since: float | None = None) -> Found:
        """How many turns got how far, and where the others ended. See `overview.funnel`."""
        return await funnel(self._database, tenant_id, since)

    async def status(self, tenant_id: UUID | None, worker_timeout_s: float = 15.0) -> Found:
        """What is served, waiting, trained and alive. See `overview.status`."""
        return await status(self._database, tenant_id, worker_timeout_s)


def _finite(packed: bytes) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in unpack_logprobs(packed)]
