"""What one commit writes: calls of the gateway, many at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from uuid import UUID

import asyncpg
from msgspec.structs import replace

from gateway.records import NextState, SessionRecord, TurnKind, TurnRecord
from gateway.store import statements
from gateway.store.calls import Call
from gateway.store.direct import DirectConnection
from gateway.store.rows import TURNS
from gateway.store.table import document

#: Of a record and its row.
_ROW = itemgetter(1)


class Apart(Exception):
    """Calls that one statement cannot write; nothing of them was written."""


async def store_at_once(
    connection: DirectConnection,
    calls: Sequence[Call],
    revision: str,
    timeout_s: float | None = None,
) -> bool:
    """Write calls in one statement that commits itself; whether judging jobs were queued.

    Writing what is there already changes nothing. What the schema's revision does not have is
    left out. Raises Apart for calls that must see one another's rows: `store` writes them.
    """
    sessions: list[tuple[SessionRecord, bytes]] = []
    turns: list[tuple[TurnRecord, bytes]] = []
    states: list[tuple[NextState, bytes]] = []
    values: tuple[str, ...]
    for call in calls:
        if call.feedback:
            raise Apart
        sessions += call.sessions
        turns += call.turns
        states += call.next_states
    if not states:
        sql = statements.TURNS_AT_ONCE
        values = document(map(_ROW, sessions)), document(map(_ROW, turns))
    else:
        stored = {turn.id for turn, _ in turns}
        if any(state.turn_id in stored for state, _ in states):
            raise Apart
        following = document(map(_ROW, _first(states)))
        if sessions or turns:
            sql = statements.ALL_AT_ONCE
            values = document(map(_ROW, sessions)), document(map(_ROW, turns)), following
        else:
            sql, values = statements.NEXT_STATES_AT_ONCE, (following,)
    try:
        rows = await connection.ask(sql[revision], *values, timeout_s=timeout_s)
    except asyncpg.DivisionByZeroError:
        raise Apart from None
    return bool(rows and rows[0][0])


async def store(connection: asyncpg.Connection, calls: Sequence[Call], revision: str) -> bool:
    """The same, statement by statement inside the caller's transaction."""
    renamed = await _sessions(connection, calls)
    turns = [_moved(pair, renamed) for call in calls for pair in call.turns]
    if turns:
        sql = statements.INSERT_TURNS[revision]
        await connection.execute(sql, document(map(_ROW, turns)))
    if echoed := [row for turn, row in turns if turn.echoes]:
        await connection.execute(statements.INSERT_ECHOES, document(echoed))
    queued = False
    states = _first([pair for call in calls for pair in call.next_states])
    if states:
        sql = statements.INSERT_NEXT_STATES[revision]
        queued |= bool(await connection.fetch(sql, document(map(_ROW, states))))
    if feedback := [row for call in calls for _, row in call.feedback]:
        sql = statements.INSERT_FEEDBACK[revision]
        queued |= bool(await connection.fetch(sql, document(feedback)))
    # In either order: a turn that was spooled arrives after what followed it.
    unknown = [turn.id for turn, _ in turns if turn.kind is TurnKind.UNKNOWN]
    if followed := unknown + [state.turn_id for state, _ in states]:
        await connection.execute(statements.PROMOTE, followed)
    if side := [turn.id for turn, _ in turns if turn.kind is TurnKind.SIDE]:
        await connection.execute(statements.SKIP_SIDE, side)
    return queued


def _first(states: Iterable[tuple[NextState, bytes]]) -> list[tuple[NextState, bytes]]:
    """The first follower of each turn.

    In one order everywhere, so that two writers of the same rows do not wait for each other.
    """
    first: dict[UUID, tuple[NextState, bytes]] = {}
    for pair in states:
        first.setdefault(pair[0].turn_id, pair)
    return [first[turn_id] for turn_id in sorted(first)]


def _seen(calls: Iterable[Call]) -> dict[UUID, float]:
    """When each session was seen last."""
    seen: dict[UUID, float] = {}
    for call in calls:
        for record, _ in call.sessions:
            seen[record.id] = max(seen.get(record.id, 0.0), record.seen_at)
        for turn, _ in call.turns:
            seen[turn.session_id] = max(seen.get(turn.session_id, 0.0), turn.created_at)
    return seen


async def _sessions(connection: asyncpg.Connection, calls: Sequence[Call]) -> dict[UUID, UUID]:
    """Insert what is new and mark all as seen; sessions that go by another id.

    Two gateways that see a new name at once each mint a session; the first one is kept.
    """
    seen = _seen(calls)
    records: list[SessionRecord] = []
    rows: list[bytes] = []
    for call in calls:
        for record, row in call.sessions:
            records.append(record)
            rows.append(row)
    if rows:
        await connection.execute(statements.INSERT_SESSIONS, document(rows))
    if not seen:
        return {}
    found = await _touch(connection, seen)
    strangers = [record for record in records if record.id not in found]
    if not strangers:
        return {}
    named = await connection.fetch(
        statements.SESSIONS_NAMED,
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
    rows = await connection.fetch(
        statements.TOUCH_SESSIONS, ordered, [seen[one] for one in ordered]
    )
    return {row["id"] for row in rows}


def _moved(pair: tuple[TurnRecord, bytes], renamed: dict[UUID, UUID]) -> tuple[TurnRecord, bytes]:
    session = renamed.get(pair[0].session_id)
    return pair if session is None else TURNS.prepared(replace(pair[0], session_id=session))
