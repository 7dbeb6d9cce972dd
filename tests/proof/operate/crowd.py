"""Turns by the hundred thousand: some stored as a gateway does, judged and trained on, then copied.

A copy is some time later than its original: the first 48 bits of an id are its milliseconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from gateway.records import NextState, SessionRecord, TurnRecord, VersionSpan, new_id
from gateway.store.calls import Call
from gateway.store.database import REVISIONS
from gateway.store.direct import DirectConnection
from gateway.store.periods import first_id
from gateway.store.writer import write
from tests.factories import next_state, session, turn

DAY = 86_400.0
TURNS_OF_A_SESSION = 10
#: What one commit of a busy gateway holds.
_CALLS = 64
_PROMPT = tuple(range(150))
_SAMPLED = tuple(range(100, 200))
_LOGPROBS = tuple(-0.001 * place for place in range(100))

_LATER = """
CREATE FUNCTION pg_temp.later(id uuid, ms bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(('x' || left(h, 12))::bit(48)::bigint + ms), 12, '0')
        || substr(h, 13))::uuid
    FROM (SELECT replace(id::text, '-', '') AS h) AS hexadecimal
$$
"""
#: What names something, by column, in each table, its turns' own column first.
_IDS = {
    "turns": ("id", "parent_id", "session_id"),
    "next_states": ("turn_id", "following_id"),
    "judgements": ("turn_id",),
    "samples": ("turn_id", "id", "session_id"),
    "verdicts": ("turn_id",),
    "echoes": ("turn_id",),
}
#: Other values that are each copy's own.
_OWN = {
    "chain_hash": "sha256(chain_hash || int8send($1))",
    "request_hash": "sha256(request_hash || int8send($1))",
}
_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""

_JUDGED = """
UPDATE judgements SET state = 'done', judge = 'rules', score = 1, done_at = now()
WHERE turn_id > $1 AND turn_id <= $2
"""
_SAMPLED_SQL = """
INSERT INTO samples (id, turn_id, session_id, lineage_id, method, score, version_min, arrived_at,
    state)
SELECT gen_random_uuid(), id, session_id, lineage_id, 'binary_rl', 1, 0, created_at, 'trained'
FROM turns WHERE id > $1 AND id <= $2
"""
_VERDICTS = """
INSERT INTO verdicts (turn_id, outcome, reason)
SELECT id, 'trained', 'trained' FROM turns WHERE id > $1 AND id <= $2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Sessions of ten turns each, served one after another between two moments."""

    tenant: UUID
    lineage: UUID
    turns: int
    first_at: float
    last_at: float

    async def settle(self, connection: DirectConnection) -> float:
        """Store all of them, each followed, judged and trained on; the seconds that it took."""
        began = time.monotonic()
        calls: list[Call] = []
        since = UUID(int=first_id(self.first_at).int - 1)
        for number in range(self.turns):
            if number % TURNS_OF_A_SESSION == 0:
                of, before = self._session(number), None
            one, followed = self._turn(of, before, number)
            before = one
            calls += [Call((of, one)), Call((followed,))]
            if len(calls) >= _CALLS:
                await write(connection, calls, REVISIONS[-1])
                calls = []
            if number % 10_000 == 9_999 or number == self.turns - 1:
                await write(connection, calls, REVISIONS[-1])
                calls = []
                async with connection.transaction():
                    for sql in (_JUDGED, _SAMPLED_SQL, _VERDICTS):
                        await connection.execute(sql, since, one.id)
                since = one.id
        return time.monotonic() - began

    async def multiply(self, connection: asyncpg.Connection, copies: int, apart_s: float) -> float:
        """Copy all rows so many times, each copy `apart_s` after the one before; the seconds."""
        await connection.execute(_LATER)
        upto = await connection.fetchval("SELECT id FROM turns ORDER BY id DESC LIMIT 1")
        statements = [
            await _copy(connection, table, ids) for table, ids in _IDS.items() if table != "echoes"
        ]
        sessions = await _copy(connection, "sessions", ("id",))
        began = time.monotonic()
        for copy in range(1, copies + 1):
            ms = int(copy * apart_s * 1000)
            async with connection.transaction():
                for sql in (*statements, sessions):
                    await connection.execute(sql, ms, upto)
                await connection.execute(
                    "INSERT INTO echoes (tenant_id, id, turn_id)"
                    " SELECT tenant_id, id || ($1::int8)::text, pg_temp.later(turn_id, $1::int8)"
                    " FROM echoes WHERE turn_id <= $2",
                    ms,
                    upto,
                )
        return time.monotonic() - began

    def _at(self, number: int) -> float:
        return self.first_at + number * (self.last_at - self.first_at) / max(1, self.turns)

    def _session(self, number: int) -> SessionRecord:
        return session(
            tenant_id=self.tenant,
            lineage_id=self.lineage,
            user=f"user {number}",
            seen_at=self._at(number + TURNS_OF_A_SESSION - 1),
        )

    def _turn(
        self, of: SessionRecord, before: TurnRecord | None, number: int
    ) -> tuple[TurnRecord, NextState]:
        at = self._at(number)
        tail = new_id().int & ((1 << 80) - 1)
        one = turn(
            of,
            before,
            id=UUID(int=first_id(at).int | tail),
            created_at=at,
            messages=({"role": "user", "content": f"What is {number}? " + 10 * "And why so? "},),
            reply={"role": "assistant", "content": f"It is {number}. " + 20 * "Because. "},
            prompt_ids=_PROMPT,
            sampled_ids=_SAMPLED,
            logprobs=_LOGPROBS,
            spans=(VersionSpan(version=0, start=0, end=len(_SAMPLED)),),
            echoes=(f"~{of.id.hex}{number}",),
        )
        return one, next_state(one, arrived_at=at + 1)


async def _copy(connection: asyncpg.Connection, table: str, ids: tuple[str, ...]) -> str:
    """INSERT of a table's rows of turns up to $2, $1 ms later."""
    columns = [row[0] for row in await connection.fetch(_COLUMNS, table)]
    values = [
        f"pg_temp.later({name}, $1)" if name in ids else _OWN.get(name, name) for name in columns
    ]
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)}"
        f" FROM {table} WHERE {ids[0]} <= $2"
    )
