"""What one commit writes: calls of the gateway, many at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import replace

from gateway.records import NextState, SessionRecord, TurnKind, TurnRecord
from gateway.store import statements
from gateway.store.calls import Call
from gateway.store.packing import scrub
from gateway.store.rows import TURNS
from gateway.store.table import document


class Apart(Exception):
    """Calls that one statement cannot write; nothing of them was written."""


async def store_at_once(
    connection: asyncpg.Connection, calls: Sequence[Call], revision: str
) -> bool:
    """Write calls in one statement that commits itself; whether judging jobs were queued.

    Writing what is there already changes nothing. What the schema's revision does not have is
    left out. Raises Apart for calls that must see one another's rows: `store` writes them.
    """
    sessions = [pair for call in calls for pair in call.sessions]
    turns = [pair for call in calls for pair in call.turns]
    states = _first([pair for call in calls for pair in call.next_states])
    stored = {turn.id for turn, _ in turns}
    if any(call.feedback for call in calls) or any(s.turn_id in stored for s, _ in states):
        raise Apart
    seen = _seen(calls)
    following, followed = document(row for _, row in states), [state.turn_id for state, _ in states]
    if not seen:
        sql = statements.NEXT_STATES_AT_ONCE[revision]
        return bool(await connection.fetchval(sql, following, followed))
    echoes = _echoes(turn for turn, _ in turns)
    ordered = sorted(seen)
    written = (
        document(row for _, row in sessions),
        ordered,
        [seen[id_] for id_ in ordered],
        document(row for _, row in turns),
        echoes,
        [turn.id for turn, _ in turns if turn.kind is TurnKind.SIDE],
        [record.id for record, _ in sessions],
    )
    try:
        if states:
            sql = statements.ALL_AT_ONCE[revision]
            return bool(await connection.fetchval(sql, *written, following, followed))
        return bool(await connection.fetchval(statements.TURNS_AT_ONCE[revision], *written))
    except asyncpg.DivisionByZeroError:
        raise Apart from None


async def store(connection: asyncpg.Connection, calls: Sequence[Call], revision: str) -> bool:
    """The same, statement by statement inside the caller's transaction."""
    renamed = await _sessions(connection, calls)
    turns = [_moved(pair, renamed) for call in calls for pair in call.turns]
    if turns:
        sql = statements.INSERT_TURNS[revision]
        await connection.execute(sql, document(row for _, row in turns))
        await connection.execute(statements.INSERT_ECHOES, _echoes(turn for turn, _ in turns))
    queued = False
    states = _first([pair for call in calls for pair in call.next_states])
    if states:
        sql = statements.INSERT_NEXT_STATES[revision]
        queued |= bool(await connection.fetch(sql, document(row for _, row in states)))
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
    """The first follower of each turn, in one order everywhere, as for echoes."""
    first: dict[UUID, tuple[NextState, bytes]] = {}
    for pair in states:
        first.setdefault(pair[0].turn_id, pair)
    return [first[turn_id] for turn_id in sorted(first)]


def _echoes(turns: Iterable[TurnRecord]) -> str:
    """The rows of their echoes, in JSON.

    In one order everywhere, so that two writers of the same rows do not wait for each other.
    """
    rows = sorted((turn.tenant_id, scrub(id_), turn.id) for turn in turns for id_ in turn.echoes)
    keyed = [{"tenant_id": whose, "id": id_, "turn_id": of} for whose, id_, of in rows]
    return msgspec.json.encode(keyed).decode()


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
