"""What one commit writes: calls of the gateway, many in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import asyncpg

from gateway.errors import StoreError
from gateway.records import FeedbackRecord, NextState, SessionRecord, TurnKind, TurnRecord
from gateway.store.frames import Storable
from gateway.store.packing import finite, scrub
from gateway.store.rows import (
    FEEDBACK,
    NEXT_STATES,
    SESSIONS,
    TURNS,
    TURNS_0001,
    Row,
    transposed,
)

_SESSION = TURNS.position("session_id")
_PER_VALUE = 6

_INSERT_SESSIONS = f"{SESSIONS.insert} ON CONFLICT DO NOTHING"

_TOUCH_SESSIONS = """
UPDATE sessions s SET
    last_seen = greatest(s.last_seen, to_timestamp(r.seen)),
    status = CASE WHEN s.ended_at >= to_timestamp(r.seen) THEN s.status ELSE 'open' END,
    end_reason = CASE WHEN s.ended_at >= to_timestamp(r.seen) THEN s.end_reason END,
    ended_at = CASE WHEN s.ended_at >= to_timestamp(r.seen) THEN s.ended_at END
FROM unnest($1::uuid[], $2::float8[]) AS r(id, seen)
WHERE s.id = r.id
RETURNING s.id
"""

_SESSIONS_NAMED = """
SELECT s.id, s.tenant_id, s.external_id FROM sessions s
JOIN unnest($1::uuid[], $2::text[]) AS r(tenant_id, external_id)
USING (tenant_id, external_id)
"""

_INSERT_TURNS = f"{TURNS.insert} ON CONFLICT (id) DO NOTHING"

_INSERT_TURNS_0001 = f"{TURNS_0001.insert} ON CONFLICT (id) DO NOTHING"

_INSERT_ECHOES = """
INSERT INTO echoes (tenant_id, id, turn_id)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[]) ON CONFLICT DO NOTHING
"""

# A turn's job has the next free round, unless one waits already; a side turn has none.
_QUEUE = """
INSERT INTO judgements (turn_id, round, tenant_id, run_after)
SELECT DISTINCT ON (new.turn_id) new.turn_id,
    coalesce((SELECT max(j.round) FROM judgements j WHERE j.turn_id = new.turn_id), 0) + 1,
    new.tenant_id, least(now(), new.arrived_at)
FROM new
WHERE NOT EXISTS (SELECT FROM turns t WHERE t.id = new.turn_id AND t.kind = 'side')
  AND NOT EXISTS (
    SELECT FROM judgements j WHERE j.turn_id = new.turn_id AND j.state = 'queued')
ON CONFLICT DO NOTHING
RETURNING turn_id
"""

_OTHER_TENANTS = "SELECT FROM turns t WHERE t.id = r.turn_id AND t.tenant_id <> r.tenant_id"

_JUDGE = len(NEXT_STATES.columns) + 1

_INSERT_NEXT_STATES = f"""
WITH added AS (
    {NEXT_STATES.insert} WHERE NOT EXISTS ({_OTHER_TENANTS})
    ON CONFLICT (turn_id) DO NOTHING
    RETURNING turn_id, tenant_id, following_id, arrived_at
), new AS (
    SELECT added.* FROM added
    JOIN unnest($1::uuid[], $3::uuid[], ${_JUDGE}::bool[]) AS wanted(turn_id, following_id, judge)
    USING (turn_id, following_id) WHERE wanted.judge
)
{_QUEUE}
"""  # noqa: S608 - made of constants

_INSERT_FEEDBACK = f"""
WITH new AS (
    {FEEDBACK.insert} WHERE NOT EXISTS ({_OTHER_TENANTS})
    ON CONFLICT DO NOTHING
    RETURNING turn_id, tenant_id, created_at AS arrived_at
)
{_QUEUE}
"""

_PROMOTE = """
UPDATE turns t SET kind = 'main', kind_rule = 'promoted_when_extended'
FROM next_states n
WHERE n.turn_id = t.id AND t.kind = 'unknown' AND t.id = ANY($1::uuid[])
"""

_SKIP_SIDE = """
UPDATE judgements SET state = 'skipped', reason = 'side', done_at = now()
WHERE state = 'queued' AND turn_id = ANY($1::uuid[])
"""


@dataclass(slots=True)
class Call:
    """One `commit`: records that are stored together or not at all.

    Raises StoreError for a record that has no form in Postgres.
    """

    records: tuple[Storable, ...]
    done: asyncio.Future[None] | None = None
    settled: bool = False
    error: StoreError | None = None
    sessions: list[tuple[SessionRecord, Row]] = field(default_factory=list)
    turns: list[tuple[TurnRecord, Row]] = field(default_factory=list)
    next_states: list[tuple[NextState, Row]] = field(default_factory=list)
    feedback: list[tuple[FeedbackRecord, Row]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for record in self.records:
            match record:
                case SessionRecord():
                    self.sessions.append(SESSIONS.prepared(record))
                case TurnRecord():
                    self.turns.append(TURNS.prepared(_honest(record)))
                case NextState():
                    self.next_states.append(NEXT_STATES.prepared(record))
                case FeedbackRecord():
                    self.feedback.append(FEEDBACK.prepared(record))
        self.records = tuple(
            record
            for prepared in (self.sessions, self.turns, self.next_states, self.feedback)
            for record, _ in prepared
        )

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return sum(
            len(value) if isinstance(value, (bytes, str)) else _PER_VALUE
            for prepared in (self.sessions, self.turns, self.next_states, self.feedback)
            for _, row in prepared
            for value in row
        )

    def untrainable(self) -> Call | None:
        """The same call with its turns given up for training, None where none is trainable."""
        if not any(turn.trainable for turn, _ in self.turns):
            return None
        return Call(
            tuple(
                replace(record, trainable=False, untrainable_reason="length_mismatch")
                if isinstance(record, TurnRecord) and record.trainable
                else record
                for record in self.records
            )
        )

    def settle(self, error: StoreError | None = None) -> None:
        """Stored for good, or refused for good; the caller is told, if one still waits."""
        self.settled = True
        self.error = error
        if self.done is None or self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


def _honest(turn: TurnRecord) -> TurnRecord:
    """A turn whose log-probabilities are not all finite is never trained on."""
    if turn.trainable and not finite(turn.logprobs):
        return replace(turn, trainable=False, untrainable_reason="logprob_not_finite")
    return turn


async def store(connection: asyncpg.Connection, calls: Sequence[Call], revision: str) -> bool:
    """Write calls inside the caller's transaction; whether judging jobs were queued.

    Writing what is there already changes nothing. At revision 0001 what came later is left out.
    """
    renamed = await _sessions(connection, calls)
    turns = [pair for call in calls for pair in call.turns]
    if turns:
        rows = [_moved(row, renamed) for _, row in turns]
        await _insert_turns(connection, rows, revision)
        await _insert_echoes(connection, [turn for turn, _ in turns], revision)
    queued = False
    states = [pair for call in calls for pair in call.next_states]
    if states:
        first: dict[UUID, Row] = {}
        for state, row in states:
            first.setdefault(state.turn_id, (*row, state.judge))
        rows = [first[turn_id] for turn_id in sorted(first)]
        queued |= bool(await connection.fetch(_INSERT_NEXT_STATES, *transposed(rows)))
    feedback = [row for call in calls for _, row in call.feedback]
    if feedback:
        queued |= bool(await connection.fetch(_INSERT_FEEDBACK, *transposed(feedback)))
    # In either order: a turn that was spooled arrives after what followed it.
    unknown = [turn.id for turn, _ in turns if turn.kind is TurnKind.UNKNOWN]
    if followed := unknown + [state.turn_id for state, _ in states]:
        await connection.execute(_PROMOTE, followed)
    if side := [turn.id for turn, _ in turns if turn.kind is TurnKind.SIDE]:
        await connection.execute(_SKIP_SIDE, side)
    return queued


async def _insert_turns(connection: asyncpg.Connection, rows: list[Row], revision: str) -> None:
    if revision == "0001":
        kept = [row[: len(TURNS_0001.columns)] for row in rows]
        await connection.execute(_INSERT_TURNS_0001, *transposed(kept))
    else:
        await connection.execute(_INSERT_TURNS, *transposed(rows))


async def _insert_echoes(
    connection: asyncpg.Connection, turns: Iterable[TurnRecord], revision: str
) -> None:
    """In one order everywhere, so that two writers of the same rows do not wait for each other."""
    echoes = sorted((turn.tenant_id, scrub(id_), turn.id) for turn in turns for id_ in turn.echoes)
    if echoes and revision != "0001":
        await connection.execute(_INSERT_ECHOES, *transposed(echoes))


async def _sessions(connection: asyncpg.Connection, calls: Iterable[Call]) -> dict[UUID, UUID]:
    """Insert what is new and mark all as seen; sessions that go by another id.

    Two gateways that see a new name at once each mint a session; the first one is kept.
    """
    seen: dict[UUID, float] = {}
    records: list[SessionRecord] = []
    rows: list[Row] = []
    for call in calls:
        for record, row in call.sessions:
            records.append(record)
            rows.append(row)
            seen[record.id] = max(seen.get(record.id, 0.0), record.seen_at)
        for turn, _ in call.turns:
            seen[turn.session_id] = max(seen.get(turn.session_id, 0.0), turn.created_at)
    if rows:
        await connection.execute(_INSERT_SESSIONS, *transposed(rows))
    if not seen:
        return {}
    found = await _touch(connection, seen)
    strangers = [record for record in records if record.id not in found]
    if not strangers:
        return {}
    named = await connection.fetch(
        _SESSIONS_NAMED,
        [record.tenant_id for record in strangers],
        [record.external_id for record in strangers],
    )
    kept = {(row["tenant_id"], row["external_id"]): row["id"] for row in named}
    renamed = {
        record.id: kept[record.tenant_id, record.external_id]
        for record in strangers
        if (record.tenant_id, record.external_id) in kept
    }
    await _touch(connection, {kept_id: seen[lost_id] for lost_id, kept_id in renamed.items()})
    return renamed


async def _touch(connection: asyncpg.Connection, seen: dict[UUID, float]) -> set[UUID]:
    ordered = sorted(seen)
    rows = await connection.fetch(_TOUCH_SESSIONS, ordered, [seen[one] for one in ordered])
    return {row["id"] for row in rows}


def _moved(row: Row, renamed: dict[UUID, UUID]) -> Row:
    session = renamed.get(row[_SESSION])
    return row if session is None else (*row[:_SESSION], session, *row[_SESSION + 1 :])
