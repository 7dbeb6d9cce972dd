"""Takes a session, or all of a user, out of every table.

In batches, each with what it found written into the audit entry in the same transaction: an
erasure that was cut off is called again and goes on, and what it erased before stays listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from gateway.errors import StoreUnavailable
from gateway.store import erasures
from gateway.store.audit import add_entry, set_subject
from gateway.store.barrier import writers_pass
from gateway.store.database import Database
from gateway.store.packing import scrub
from gateway.store.turn_rows import UNHELD, delete_late, delete_turns

Found = dict[str, Any]

ACTION = "erasure"
#: Told to gateways, which then forget what they stored last.
CHANNEL = "nextstate_erased"

_TURNS_AT_ONCE = 500
_SESSIONS_AT_ONCE = 200
_TRIES = 5
#: Ids of sessions that the audit entry names; of more it has the number.
_MOST_NAMED = 1000

#: The sessions themselves, and those that they called or that go on from their summaries.
_OF_SESSION = """
WITH RECURSIVE family AS (
    SELECT id FROM sessions WHERE tenant_id = $1 AND id = ANY($2::uuid[])
    UNION
    SELECT c.id FROM family f CROSS JOIN LATERAL (
        SELECT s.id FROM sessions s
        WHERE s.parent_session_id = f.id AND s.tenant_id = $1 OFFSET 0
    ) c
)
SELECT id FROM family
"""
_OF_USER = "SELECT id FROM sessions WHERE tenant_id = $1 AND end_user = $2"

#: With a time $4, only those that were asked before it.
_TURNS = """
SELECT id, parent_id FROM turns WHERE session_id = ANY($1::uuid[]) AND tenant_id = $2
    AND ($4::timestamptz IS NULL OR created_at < $4)
ORDER BY session_id, id LIMIT $3
"""
#: What these turns were to turns of other sessions: the words that followed them.
_FOLLOWED = """
DELETE FROM next_states
WHERE turn_id = ANY($1::uuid[]) AND following_id = ANY($2::uuid[]) AND NOT turn_id = ANY($2::uuid[])
"""
_TRAINED = """
SELECT DISTINCT l.name AS lineage, s.lineage_id, st.to_version AS version
FROM samples s JOIN train_steps st ON st.id = s.step_id JOIN lineages l ON l.id = s.lineage_id
WHERE s.turn_id = ANY($1::uuid[])
UNION
SELECT DISTINCT l.name, st.lineage_id, v.version
FROM verdicts v JOIN train_steps st ON st.id = v.step_id JOIN lineages l ON l.id = st.lineage_id
WHERE v.turn_id = ANY($1::uuid[]) AND v.version IS NOT NULL
"""
#: Held until the end, so that no step begins with them in between.
_HOLD = "SELECT FROM samples WHERE turn_id = ANY($1::uuid[]) ORDER BY id FOR UPDATE"
_SESSIONS = """
DELETE FROM sessions s WHERE s.id = ANY($1::uuid[]) AND s.tenant_id = $2
  AND NOT EXISTS (SELECT FROM turns t WHERE t.session_id = s.id)
"""

#: Erasures of late, with the sessions that requests which were under way may have brought back.
_OF_LATE = """
SELECT a.id, a.tenant_id, a.created_at, a.subject, ARRAY(
    SELECT named.id::uuid FROM jsonb_array_elements_text(a.subject -> 'session_ids') AS named(id)
    UNION
    SELECT s.id FROM sessions s
    WHERE a.subject ->> 'kind' = 'user' AND s.tenant_id = a.tenant_id
      AND s.last_seen > a.created_at - make_interval(secs => $2) AND s.end_user IS NOT NULL
      AND encode(sha256(uuid_send(s.tenant_id) || convert_to(s.end_user, 'UTF8')), 'hex')
        = a.subject ->> 'digest'
) AS session_ids
FROM audit_entries a
WHERE a.action = $1 AND a.created_at > now() - make_interval(secs => $2) ORDER BY a.id
"""

_EARLIER = """
SELECT subject FROM audit_entries WHERE tenant_id = $1 AND action = $2 AND subject ->> 'digest' = $3
ORDER BY id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What an erasure did: rows gone by table, and the versions that were trained on them.

    Those of earlier erasures of the same are among the versions: a weight does not forget.
    Later versions of a lineage come from the ones that are listed.
    """

    entry_id: UUID
    sessions: int
    rows: dict[str, int] = field(default_factory=dict)
    versions: list[Found] = field(default_factory=list)


class Erasure:
    """Everything is inside a tenant. Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def session(self, tenant_id: UUID, session_id: UUID, actor: str) -> Erased | None:
        """A session with those that it called; None where there is none and never was one."""
        found = await self._database.fetch(_OF_SESSION, tenant_id, [session_id])
        digest = erasures.of_id(session_id)
        if not found and not await self._earlier(tenant_id, digest):
            return None
        ids = [row["id"] for row in found] or [session_id]
        return await self._erase(tenant_id, ids, actor, "session", digest)

    async def user(self, tenant_id: UUID, end_user: str, actor: str) -> Erased:
        """All sessions of a user, whatever there is of him; calling again does no harm."""
        own = await self._database.fetch(_OF_USER, tenant_id, scrub(end_user))
        found = await self._database.fetch(_OF_SESSION, tenant_id, [row["id"] for row in own])
        digest = erasures.of_user(tenant_id, end_user)
        return await self._erase(tenant_id, [row["id"] for row in found], actor, "user", digest)

    async def again(self, within_s: float) -> int:
        """Erase what requests that were under way at an erasure have stored since; how many turns.

        Erasures of the last `within_s` are looked at.
        """
        found = await self._database.fetch(_OF_LATE, ACTION, within_s)
        turns = 0
        for row in found:
            work = _Work(row["tenant_id"], row["id"], dict(row["subject"]))
            before = work.rows["turns"]
            for some in _some(row["session_ids"]):
                await self._batches(work, some, row["created_at"])
            turns += work.rows["turns"] - before
        return turns

    async def _erase(
        self, tenant_id: UUID, session_ids: Sequence[UUID], actor: str, kind: str, digest: bytes
    ) -> Erased:
        versions = {
            _key(one): one
            for subject in await self._earlier(tenant_id, digest)
            for one in subject["versions"]
        }
        subject: Found = {
            "kind": kind,
            "digest": digest.hex(),
            "sessions": len(session_ids),
            "session_ids": [str(id_) for id_ in session_ids[:_MOST_NAMED]],
            "rows": {},
            "versions": list(versions.values()),
        }
        async with self._database.transaction() as connection:
            names = [digest, *map(erasures.of_id, session_ids)]
            await erasures.note(connection, tenant_id, names)
            entry_id = await add_entry(connection, tenant_id, actor, ACTION, subject)
        work = _Work(tenant_id, entry_id, subject)
        for some in _some(session_ids):
            await self._batches(work, some, None)
        await self._database.execute("SELECT pg_notify($1, $2)", CHANNEL, str(tenant_id))
        return Erased(
            entry_id=entry_id,
            sessions=work.rows["sessions"],
            rows={table: count for table, count in work.rows.items() if count},
            versions=sorted(
                work.versions.values(), key=lambda one: (one["lineage"], one["version"])
            ),
        )

    async def _batches(
        self, work: _Work, session_ids: Sequence[UUID], before: datetime | None
    ) -> None:
        """Erase the turns of some sessions, asked `before` if that is given, then the sessions."""
        more, tries = True, 0
        gone: list[UUID] = []
        while more:
            try:
                async with self._database.transaction() as connection:
                    done = await _batch(connection, work, session_ids, before)
                    await set_subject(connection, work.entry_id, work.told(done))
            except asyncpg.TransactionRollbackError:
                # A turn of the session was being stored, judged or trained on.
                tries += 1
                if tries == _TRIES:
                    raise StoreUnavailable("the session is in use: erase it again") from None
                continue
            work.add(done)
            gone += done.turn_ids
            more = len(done.turn_ids) == _TURNS_AT_ONCE
        if gone:
            await self._late(work, gone)

    async def _late(self, work: _Work, turn_ids: Sequence[UUID]) -> None:
        """Erase what others were saying of these turns while they were erased.

        Who begins afterwards sees that they were, and says nothing.
        """
        await writers_pass(self._database, *UNHELD)
        for start in range(0, len(turn_ids), _TURNS_AT_ONCE):
            some = turn_ids[start : start + _TURNS_AT_ONCE]
            async with self._database.transaction() as connection:
                done = _Done([], Counter(await delete_late(connection, some)), {})
                await set_subject(connection, work.entry_id, work.told(done))
            work.add(done)

    async def _earlier(self, tenant_id: UUID, digest: bytes) -> list[Found]:
        rows = await self._database.fetch(_EARLIER, tenant_id, ACTION, digest.hex())
        return [row["subject"] for row in rows]


@dataclass(frozen=True, slots=True)
class _Done:
    """What one batch did."""

    turn_ids: list[UUID]
    rows: Counter[str]
    versions: dict[tuple[str, int], Found]


class _Work:
    """An erasure on its way, and what its audit entry says."""

    def __init__(self, tenant_id: UUID, entry_id: UUID, subject: Found) -> None:
        self.tenant_id, self.entry_id, self._subject = tenant_id, entry_id, subject
        self.rows: Counter[str] = Counter(subject["rows"])
        self.versions = {_key(one): one for one in subject["versions"]}

    def told(self, done: _Done) -> Found:
        """The subject with what a batch did."""
        rows, versions = self.rows + done.rows, self.versions | done.versions
        return self._subject | {"rows": dict(rows), "versions": list(versions.values())}

    def add(self, done: _Done) -> None:
        self.rows += done.rows
        self.versions |= done.versions


def _key(version: Found) -> tuple[str, int]:
    return version["lineage_id"], version["version"]


def _some(session_ids: Sequence[UUID]) -> Iterator[list[UUID]]:
    for start in range(0, len(session_ids), _SESSIONS_AT_ONCE):
        yield list(session_ids[start : start + _SESSIONS_AT_ONCE])


async def _batch(
    connection: asyncpg.Connection,
    work: _Work,
    session_ids: Sequence[UUID],
    before: datetime | None,
) -> _Done:
    """Erase some turns of sessions, and the sessions that have no more."""
    tenant_id, rows = work.tenant_id, Counter[str]()
    versions: dict[tuple[str, int], Found] = {}
    turns = await connection.fetch(_TURNS, session_ids, tenant_id, _TURNS_AT_ONCE, before)
    turn_ids = [row["id"] for row in turns]
    if turn_ids:
        await connection.execute(_HOLD, turn_ids)
        for row in await connection.fetch(_TRAINED, turn_ids):
            found = {**dict(row), "lineage_id": str(row["lineage_id"])}
            versions[_key(found)] = found
        parents = [row["parent_id"] for row in turns if row["parent_id"] is not None]
        await connection.execute(_FOLLOWED, parents, turn_ids)
        await erasures.note(connection, tenant_id, [erasures.of_id(id_) for id_ in turn_ids])
        rows.update(await delete_turns(connection, turn_ids))
    done = await connection.execute(_SESSIONS, session_ids, tenant_id)
    rows["sessions"] += int(done.rpartition(" ")[2])
    return _Done(turn_ids, rows, versions)
