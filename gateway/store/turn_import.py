"""Exported turns taken into a tenant, as an archive.

They are shown, counted and can be judged again. They are never trained on and no conversation goes
on from them: nobody can vouch for what a file says was sampled. Their ids are made of the tenant's
and the old ones, so that nothing of another tenant can be named and a second import changes
nothing; what the tenant has under its own ids is left as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import asyncpg
import msgspec

from gateway.records import (
    NextState,
    Principal,
    SessionRecord,
    Timings,
    TurnRecord,
    Usage,
)
from gateway.store.batch import store
from gateway.store.calls import Call
from gateway.store.database import Database
from gateway.store.expiry import take_marks_back
from gateway.store.packing import as_float32, scrub
from gateway.store.turn_lines import Line

#: Why an imported turn is not trained on, and what its lineage is told in its verdict.
IMPORTED = "imported"

_OWN = """
SELECT id FROM turns WHERE tenant_id = $1 AND id = ANY($2::uuid[])
UNION ALL SELECT id FROM sessions WHERE tenant_id = $1 AND id = ANY($2::uuid[])
"""

# Of turns that the tenant has.
_JUDGEMENTS = """
INSERT INTO judgements (turn_id, round, tenant_id, state, judge, rule, score, confidence, reason,
    hint, done_at)
SELECT r.turn_id, r.round, $1, 'done', r.judge, r.rule, r.score, r.confidence, r.reason, r.hint,
    to_timestamp(r.done_at)
FROM json_to_recordset($2::json) AS r(turn_id uuid, round int2, judge text, rule text, score float4,
    confidence float4, reason text, hint text, done_at float8)
JOIN turns t ON t.id = r.turn_id AND t.tenant_id = $1
ON CONFLICT DO NOTHING
"""

_FEEDBACK = """
INSERT INTO feedback (id, tenant_id, turn_id, score, text, source, created_at)
SELECT r.id, $1, r.turn_id, r.score, r.text, r.source, to_timestamp(r.created_at)
FROM json_to_recordset($2::json) AS r(id uuid, turn_id uuid, score float4, text text, source text,
    created_at float8)
JOIN turns t ON t.id = r.turn_id AND t.tenant_id = $1
ON CONFLICT DO NOTHING
"""

_VERDICTS = f"""
INSERT INTO verdicts (turn_id, outcome, reason)
SELECT t.id, 'untrainable', '{IMPORTED}' FROM turns t
WHERE t.tenant_id = $1 AND t.id = ANY($2::uuid[]) AND t.kind <> 'side'
ON CONFLICT DO NOTHING
"""  # noqa: S608 - made of constants

# They ended where they came from.
_CLOSE = f"""
UPDATE sessions SET status = 'closed', end_reason = '{IMPORTED}', ended_at = now()
WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND status = 'open'
"""  # noqa: S608


class TurnImport:
    """Takes lines into the tenant of a key, on that key's lineage. Raises StoreError."""

    def __init__(self, database: Database, who: Principal) -> None:
        self._database, self._who = database, who

    async def add(self, lines: Sequence[Line]) -> int:
        """Store what is not there yet, all of these lines or none; how many turns are new."""
        tenant = self._who.tenant_id
        named = {id_ for line in lines for id_ in _named(line)}
        async with self._database.transaction() as connection:
            rows = await connection.fetch(_OWN, tenant, list(named))
            ids = _Ids(tenant, {row["id"] for row in rows})
            new = {ids(line.turn.id): line for line in lines if line.turn.id not in ids.own}
            for row in await connection.fetch(_OWN, tenant, list(new)):
                del new[row["id"]]
            if new:
                calls = [self._call(line, ids) for line in new.values()]
                await store(connection, calls, self._database.revision)
                await take_marks_back(connection, [turn for one in calls for turn, _ in one.turns])
                await self._add_histories(connection, new, ids)
        return len(new)

    async def _add_histories(
        self, connection: asyncpg.Connection, lines: Mapping[UUID, Line], ids: _Ids
    ) -> None:
        tenant = self._who.tenant_id
        judged = [
            scrub(msgspec.to_builtins(one))
            | {
                "turn_id": turn_id,
                "score": as_float32(one.score),
                "confidence": as_float32(one.confidence),
            }
            for turn_id, line in lines.items()
            for one in line.judgements
            if one.state == "done" and one.round > 0
        ]
        said = [
            scrub(msgspec.to_builtins(one))
            | {"turn_id": turn_id, "id": ids.made(one.id), "score": as_float32(one.score)}
            for turn_id, line in lines.items()
            for one in line.feedback
        ]
        await connection.execute(_JUDGEMENTS, tenant, msgspec.json.encode(judged).decode())
        await connection.execute(_FEEDBACK, tenant, msgspec.json.encode(said).decode())
        await connection.execute(_VERDICTS, tenant, list(lines))
        sessions = [ids.made(line.session.id) for line in lines.values()]
        await connection.execute(_CLOSE, tenant, sessions)

    def _call(self, line: Line, ids: _Ids) -> Call:
        who, turn = self._who, line.turn
        session = SessionRecord(
            id=ids.made(line.session.id),
            tenant_id=who.tenant_id,
            key_id=who.key_id,
            lineage_id=who.lineage_id,
            external_id=None,
            resolved_by=line.session.resolved_by,
            model=line.session.model,
            client=line.session.client,
            ambiguous=line.session.ambiguous,
            parent_session_id=ids.maybe(line.session.parent_session_id),
            user=line.session.end_user,
            seen_at=line.session.first_seen,
        )
        record = TurnRecord(
            id=ids(turn.id),
            tenant_id=who.tenant_id,
            session_id=session.id,
            lineage_id=who.lineage_id,
            parent_id=ids.maybe(turn.parent_id),
            depth=turn.depth,
            branch_reason=turn.branch_reason,
            retry_of=ids.maybe(turn.retry_of),
            kind=turn.kind,
            kind_rule=turn.kind_rule,
            kind_confidence=as_float32(turn.kind_confidence),
            resolve_rule=turn.resolve_rule,
            dialect=turn.dialect,
            model=turn.model,
            engine=turn.engine,
            request_hash=_apart(turn.request_hash),
            chain_hash=_apart(turn.chain_hash),
            message_count=turn.message_count,
            messages=tuple(turn.messages),
            tools=tuple(turn.tools),
            tools_hash=_apart(turn.tools_hash),
            reply=turn.reply,
            shared_len=turn.shared_len,
            prompt_ids=turn.prompt_ids,
            sampled_ids=turn.sampled_ids,
            logprobs=(),
            spans=(),
            sampling=turn.sampling,
            finish_reason=turn.finish_reason,
            finish_detail=turn.finish_detail,
            trainable=False,
            untrainable_reason=IMPORTED,
            usage=Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=turn.cached_tokens),
            timings=Timings(
                queued_ms=as_float32(turn.queued_ms),
                first_token_ms=as_float32(turn.first_token_ms),
                total_ms=as_float32(turn.total_ms),
            ),
            created_at=turn.created_at,
            delivered=turn.delivered,
            response_store=False,
        )
        if line.next_state is None:
            return Call((session, record))
        state = NextState(
            turn_id=record.id,
            tenant_id=who.tenant_id,
            following_id=ids(line.next_state.following_id),
            messages=tuple(line.next_state.messages),
            role=line.next_state.role,
            arrived_at=line.next_state.arrived_at,
            judge=False,
        )
        return Call((session, record, state))


class _Ids:
    """What ids of a file become: those that are the tenant's `own` stay."""

    def __init__(self, tenant_id: UUID, own: Collection[UUID]) -> None:
        self._tenant_id, self.own = tenant_id, own

    def __call__(self, id_: UUID) -> UUID:
        return id_ if id_ in self.own else self.made(id_)

    def made(self, id_: UUID) -> UUID:
        """The time of the old id, and beyond it a digest of tenant and id (RFC 9562, version 8)."""
        digest = hashlib.sha256(self._tenant_id.bytes + id_.bytes).digest()
        made = int.from_bytes(id_.bytes[:6] + digest[:10])
        made = made & ~(0xF << 76) | 0x8 << 76
        return UUID(int=made & ~(0x3 << 62) | 0x2 << 62)

    def maybe(self, id_: UUID | None) -> UUID | None:
        return None if id_ is None else self(id_)


def _named(line: Line) -> set[UUID]:
    found = {line.turn.id, line.session.id, line.turn.parent_id, line.turn.retry_of}
    found |= {line.session.parent_session_id}
    return {id_ for id_ in found if id_ is not None}


def _apart(digest: str) -> bytes:
    """Another digest, which no request has: nothing goes on from what is imported."""
    return hashlib.sha256(b"imported" + bytes.fromhex(digest)).digest()
