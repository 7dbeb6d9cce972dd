"""Turns that were beside the line after all: taken off it, with what was stored of them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from gateway.records import Message, NextState, TurnKind
from gateway.resolve import Branch
from gateway.store.database import Database, seconds

#: Of a reply that was extended more often, the newest are enough.
_MOST_BRANCHES = 32

# $1 tenant, $2 the turn that they extend. Ordered by what no index is, so that the one by parent
# is used whatever the plan was made for. No EXISTS: while the table is empty its plan would be to
# read all of it into a hash table, whatever PLANNER says.
BRANCHES = f"""
SELECT t.id, t.kind, t.tools_hash, t.delivered,
    coalesce((SELECT true FROM turns c WHERE c.parent_id = t.id AND c.kind <> 'side' LIMIT 1),
        false) AS followed
FROM (
    SELECT * FROM turns
    WHERE parent_id = $2 AND tenant_id IS NOT DISTINCT FROM $1 AND retry_of IS NULL
    ORDER BY created_at DESC LIMIT {_MOST_BRANCHES}
) t
"""  # noqa: S608 - made of constants

_OFF_THE_LINE = """
UPDATE turns t SET kind = 'side', kind_rule = 'beside_line'
WHERE t.id = ANY($2::uuid[]) AND t.tenant_id = $1 AND t.kind <> 'side'
  AND NOT EXISTS (SELECT FROM turns c WHERE c.parent_id = t.id AND c.kind <> 'side')
RETURNING t.id
"""

_SKIP = """
UPDATE judgements SET state = 'skipped', reason = 'side', done_at = now()
WHERE state = 'queued' AND turn_id = ANY($1::uuid[])
"""

_DROP = """
UPDATE samples SET state = 'dropped', reason = 'beside_line'
WHERE state = 'ready' AND turn_id = ANY($1::uuid[])
"""

_VERDICT = """
INSERT INTO verdicts (turn_id, outcome, reason)
SELECT id, 'unscored', 'beside_line' FROM unnest($1::uuid[]) AS t(id)
ON CONFLICT (turn_id) DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason
WHERE verdicts.outcome <> 'trained'
"""

# A user who took nothing back.
_NOT_DISCARDED = "DELETE FROM next_states WHERE turn_id = ANY($1::uuid[]) AND how = 'rolled_back'"

# Only while nothing was learned from the wrong one.
_FOLLOWED_BY = """
UPDATE next_states n SET following_id = $3, messages = $4::jsonb, role = $5,
    arrived_at = to_timestamp($6)
WHERE n.turn_id = $2 AND n.tenant_id = $1 AND n.following_id = ANY($7::uuid[])
  AND n.how = 'continued'
  AND NOT EXISTS (
    SELECT FROM samples s WHERE s.turn_id = n.turn_id AND s.state IN ('leased', 'trained'))
RETURNING n.turn_id
"""

# Judged, or being judged, by the wrong words: once more. A job that waits reads the new ones.
_JUDGE_AGAIN = """
INSERT INTO judgements (turn_id, round, tenant_id)
SELECT t.id, coalesce((SELECT max(j.round) FROM judgements j WHERE j.turn_id = t.id), 0) + 1,
    t.tenant_id
FROM turns t WHERE t.id = $1 AND t.kind <> 'side'
  AND NOT EXISTS (SELECT FROM judgements j WHERE j.turn_id = t.id AND j.state = 'queued')
ON CONFLICT DO NOTHING
"""

_ASKED = f"""
SELECT messages, {seconds("created_at")} AS created_at
FROM turns WHERE id = $1 AND tenant_id = $2
"""  # noqa: S608 - made of constants


async def find_branches(
    database: Database, tenant_id: UUID, parent_id: UUID, timeout_s: float
) -> list[Branch]:
    """The turns that extend a reply, the newest first. Raises StoreUnavailable."""
    rows = await database.look_up(BRANCHES, tenant_id, parent_id, timeout_s=timeout_s)
    return [
        Branch(
            turn_id=row["id"],
            kind=TurnKind(row["kind"]),
            tools_hash=row["tools_hash"],
            delivered=row["delivered"],
            followed=row["followed"],
        )
        for row in rows
    ]


async def asked_by(
    database: Database, tenant_id: UUID, turn_id: UUID
) -> tuple[tuple[Message, ...], float]:
    """(what was new in a turn's request, when it came). Raises StoreUnavailable."""
    row = await database.fetchrow(_ASKED, turn_id, tenant_id)
    return ((), 0.0) if row is None else (tuple(row["messages"]), row["created_at"])


async def put_beside(
    database: Database,
    tenant_id: UUID,
    beside: Sequence[UUID],
    given_up: Sequence[UUID],
    state: NextState | None,
) -> None:
    """Take turns off the line, and let what really followed be the next state of their parent.

    Those that were given up stay what they are, but were no next state either. A turn that was
    trained on stays so, and so does a next state that was learned from. Raises StoreUnavailable.
    """
    async with database.transaction() as connection:
        rows = await connection.fetch(_OFF_THE_LINE, tenant_id, list(beside))
        gone = [row["id"] for row in rows]
        for sql in (_SKIP, _DROP, _VERDICT, _NOT_DISCARDED) if gone else ():
            await connection.execute(sql, gone)
        if state is None:
            return
        replaced = await connection.fetchval(
            _FOLLOWED_BY,
            tenant_id,
            state.turn_id,
            state.following_id,
            list(state.messages),
            state.role,
            state.arrived_at,
            [*gone, *given_up],
        )
        if replaced is not None and state.judge:
            await connection.execute(_JUDGE_AGAIN, state.turn_id)
