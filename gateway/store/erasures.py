"""What was erased and may still come in late: from the spool of a gateway that was down.

Only digests are kept, of ids and of users' names, and only for as long as a spool may lie about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from uuid import UUID

import asyncpg

from gateway.records import FeedbackRecord, NextState, SessionRecord, TurnRecord
from gateway.store.calls import Call
from gateway.store.packing import scrub
from gateway.store.turn_rows import delete_turns

KEPT_DAYS = 30

_NOTE = """
INSERT INTO erasures (digest, tenant_id)
SELECT DISTINCT digest, $2::uuid FROM unnest($1::bytea[]) AS d(digest)
ON CONFLICT (digest) DO UPDATE SET erased_at = now()
"""
_FIND = "SELECT digest, erased_at FROM erasures WHERE digest = ANY($1::bytea[])"
_FORGET = "DELETE FROM erasures WHERE erased_at < now() - make_interval(days => $1)"


def of_id(id_: UUID) -> bytes:
    """The digest of a session or a turn."""
    return sha256(id_.bytes).digest()


def of_user(tenant_id: UUID, end_user: str) -> bytes:
    """The digest of a tenant's user, as sessions are stored with him."""
    return sha256(tenant_id.bytes + scrub(end_user).encode()).digest()


async def note(connection: asyncpg.Connection, tenant_id: UUID, digests: Collection[bytes]) -> None:
    """What these digests name has been erased now."""
    await connection.execute(_NOTE, sorted(digests), tenant_id)


async def forget_old(connection: asyncpg.Connection) -> None:
    await connection.execute(_FORGET, KEPT_DAYS)


async def erased_among(
    connection: asyncpg.Connection, groups: Sequence[Sequence[object]]
) -> list[bool]:
    """Whether anything of each group of records was erased after it was made."""
    erased = await _erased(connection, groups)
    return [any(_is_erased(record, erased) for record in records) for records in groups]


async def not_erased(connection: asyncpg.Connection, calls: Sequence[Call]) -> list[Call]:
    """Of calls that waited in a spool, those of which nothing was erased after they were made."""
    erased = await _erased(connection, [call.records for call in calls])
    lost = [
        turn
        for call in calls
        if any(_is_erased(record, erased) for record in call.records)
        for turn, _ in call.turns
    ]
    # What followed them may be here, may have come in before, or may come later.
    erased |= {of_id(turn.id): datetime.now(UTC) for turn in lost}
    for turn in lost:
        await note(connection, turn.tenant_id, [of_id(turn.id)])
    if lost:
        await delete_turns(connection, [turn.id for turn in lost])
    kept: list[Call] = []
    for call in calls:
        if any(_is_erased(record, erased) for record in call.records):
            call.settle()
        else:
            kept.append(call)
    return kept


async def _erased(
    connection: asyncpg.Connection, groups: Sequence[Sequence[object]]
) -> dict[bytes, datetime]:
    """What of all that these records belong to was erased, and when."""
    keys = {key for records in groups for key in _keys(records)}
    rows = await connection.fetch(_FIND, sorted(keys))
    return {row["digest"]: row["erased_at"] for row in rows}


def _keys(records: Iterable[object]) -> Iterable[bytes]:
    for record in records:
        yield from _named(record)


def _named(record: object) -> Iterable[bytes]:
    """The digests of all that a record belongs to."""
    if isinstance(record, SessionRecord):
        yield of_id(record.id)
        if record.user is not None:
            yield of_user(record.tenant_id, record.user)
    elif isinstance(record, TurnRecord):
        yield of_id(record.session_id)
        yield of_id(record.id)
    elif isinstance(record, NextState):
        yield of_id(record.turn_id)
        yield of_id(record.following_id)
    elif isinstance(record, FeedbackRecord):
        yield of_id(record.turn_id)


def _is_erased(record: object, erased: dict[bytes, datetime]) -> bool:
    found = [erased[key] for key in _named(record) if key in erased]
    if not found:
        return False
    # A session may go on after it was erased; a turn does not.
    match record:
        case SessionRecord(seen_at=made_at) | TurnRecord(created_at=made_at):
            return made_at <= max(found).timestamp()
    return True
