"""One batch of turns whose time is over: what goes of them, and what still waits for them.

Turns are found by ranges of their ids, which begin with the time: an index for it is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import asyncpg

from gateway.records import TurnRecord
from gateway.store.turn_rows import delete_turns

#: Why a sample was dropped, or a turn is not judged any more.
REASON = "retention"


class Part(StrEnum):
    """What has a time of its own. `turns` is all of a turn, and goes first."""

    TURNS = "turns"
    TEXT = "text"
    TOKENS = "tokens"
    SCORES = "scores"


#: The end of a batch: the id in the `$3`th place after `$1`, or the last one up to `$2`.
BOUND = """
SELECT id FROM (SELECT id FROM turns WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3) AS next
ORDER BY id DESC LIMIT 1
"""

_LEFT: Mapping[Part, str] = {
    Part.TURNS: "true",
    Part.TEXT: "NOT text_cleared",
    Part.TOKENS: "NOT tokens_cleared",
    Part.SCORES: "true",
}

#: The turns in ($1, $2] of the tenants $3 that have the part still.
DUE = {
    part: "SELECT id FROM turns"  # noqa: S608 - made of constants
    f" WHERE id > $1 AND id <= $2 AND tenant_id = ANY($3::uuid[]) AND {left} ORDER BY id"
    for part, left in _LEFT.items()
}

_OPEN = """
EXISTS (SELECT FROM samples s WHERE s.turn_id = {id} AND s.state IN ('ready', 'leased'))
OR EXISTS (SELECT FROM judgements j WHERE j.turn_id = {id} AND j.state IN ('queued', 'leased'))
"""

#: Turns that wait to be judged or trained on and go back to any of $1, with the first of $1 on
#: their way. Each turn below is looked at once.
WAITING = f"""
WITH RECURSIVE below AS (
    SELECT u.id FROM unnest($1::uuid[]) AS u(id)
    UNION
    SELECT t.id FROM below b CROSS JOIN LATERAL (
        SELECT c.id FROM turns c WHERE c.parent_id = b.id OFFSET 0
    ) t
), waiting AS MATERIALIZED (
    SELECT b.id FROM below b WHERE {_OPEN.format(id="b.id")}
), line AS (
    SELECT w.id AS leaf, w.id FROM waiting w
    UNION
    SELECT l.leaf, p.parent_id FROM line l CROSS JOIN LATERAL (
        SELECT t.parent_id FROM turns t WHERE t.id = l.id AND t.parent_id IS NOT NULL OFFSET 0
    ) p
)
SELECT l.leaf, l.id AS needed FROM line l WHERE l.id = ANY($1::uuid[])
"""  # noqa: S608 - made of constants

_DROP_SAMPLES = """
UPDATE samples SET state = 'dropped', reason = $2
WHERE turn_id = ANY($1::uuid[]) AND state IN ('ready', 'leased')
"""
_SKIP_JOBS = """
UPDATE judgements SET state = 'skipped', reason = $2, done_at = now(), lease_owner = NULL,
    lease_until = NULL
WHERE turn_id = ANY($1::uuid[]) AND state IN ('queued', 'leased')
"""
_VERDICTS = """
INSERT INTO verdicts (turn_id, outcome, reason)
SELECT turn_id, 'dropped', $2 FROM unnest($1::uuid[]) AS gone(turn_id)
ON CONFLICT (turn_id) DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason,
    step_id = NULL, version = NULL, created_at = now()
WHERE verdicts.outcome <> 'trained'
"""

# A hash of what was said can be tried out: another of the same form takes its place, unlike all
# others, so that nothing is found by it.
_NO_HASH = "sha256(uuid_send(id))"

#: What goes of the turns $1, by part. Rows and lengths stay, so that turns can still be counted.
CLEARS: Mapping[Part, Sequence[str]] = {
    Part.TEXT: (
        f"""
UPDATE turns SET text_cleared = true, messages = '[]', tools = '[]', reply = '{{}}',
    sampling = sampling - 'stop' - 'grammar', idempotency_key = NULL, response_store = false,
    response_fields = NULL,
    request_hash = {_NO_HASH}, chain_hash = {_NO_HASH}, tools_hash = {_NO_HASH}
WHERE id = ANY($1::uuid[])
""",  # noqa: S608 - made of constants
        "DELETE FROM echoes WHERE turn_id = ANY($1::uuid[])",
        "UPDATE next_states SET messages = '[]' WHERE turn_id = ANY($1::uuid[])",
        "UPDATE feedback SET text = '' WHERE turn_id = ANY($1::uuid[]) AND text <> ''",
        """
UPDATE judgements SET votes = '[]', hint = NULL,
    reason = CASE WHEN state = 'done' THEN NULL ELSE reason END
WHERE turn_id = ANY($1::uuid[])
""",
        "UPDATE teachings SET hint = '' WHERE turn_id = ANY($1::uuid[])",
    ),
    Part.TOKENS: (
        """
UPDATE turns SET tokens_cleared = true, prompt_ids = '', sampled_ids = '', logprobs = '',
    kept = NULL, response_fields = response_fields - 'top'
WHERE id = ANY($1::uuid[])
""",
        "DELETE FROM teachings WHERE turn_id = ANY($1::uuid[])",
    ),
    # A sample stays, as that a turn was trained on: it must not be again.
    Part.SCORES: (
        "DELETE FROM judgements WHERE turn_id = ANY($1::uuid[])",
        "DELETE FROM feedback WHERE turn_id = ANY($1::uuid[])",
        "UPDATE samples SET score = 0 WHERE turn_id = ANY($1::uuid[])",
    ),
}


# A batch that is under way ends before its mark is looked at.
_HOLD = "SELECT FROM retention_marks WHERE tenant_id = $1 ORDER BY part FOR UPDATE"

# What a pass has left behind is newer than such a turn was when it came in.
_BACK = """
UPDATE retention_marks SET cleared_to = $2 WHERE tenant_id = $1 AND cleared_to >= $2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The turns in (`after`, `upto`] of some tenants, whose time for a part is over.

    What a turn after `forced` is needed for is waited for; before, it is dropped.
    """

    part: Part
    tenants: Sequence[UUID]
    after: UUID
    upto: UUID
    forced: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """How far a batch came, how many turns it cleared and how many it dropped from training.

    `waits` says that it ends before a turn that is still needed.
    """

    upto: UUID
    turns: int
    dropped: int
    waits: bool


async def clear(connection: asyncpg.Connection, batch: Batch) -> Cleared:
    """Clear a batch, in the caller's transaction."""
    rows = await connection.fetch(DUE[batch.part], batch.after, batch.upto, list(batch.tenants))
    due = [row["id"] for row in rows]
    upto, waits, dropped = batch.upto, False, 0
    if due:
        waiting = await connection.fetch(WAITING, due)
        kept = [row["needed"] for row in waiting if row["needed"] > batch.forced]
        if kept:
            # Nothing from there on is touched: the next look begins there.
            upto, waits = UUID(int=min(kept).int - 1), True
            due = [id_ for id_ in due if id_ <= upto]
        gone = sorted({row["leaf"] for row in waiting if row["needed"] <= upto})
        if gone:
            await connection.execute(_DROP_SAMPLES, gone, REASON)
            await connection.execute(_SKIP_JOBS, gone, REASON)
            await connection.execute(_VERDICTS, gone, REASON)
            dropped = len(gone)
        if batch.part is Part.TURNS:
            await delete_turns(connection, due)
        else:
            for sql in CLEARS[batch.part]:
                await connection.execute(sql, due)
    return Cleared(upto=upto, turns=len(due), dropped=dropped, waits=waits)


async def take_marks_back(connection: asyncpg.Connection, turns: Iterable[TurnRecord]) -> None:
    """Turns that are stored long after they were served are looked at by the next pass."""
    oldest: dict[UUID, UUID] = {}
    for turn in turns:
        oldest[turn.tenant_id] = min(turn.id, oldest.get(turn.tenant_id, turn.id))
    for tenant_id, turn_id in sorted(oldest.items()):
        await connection.execute(_HOLD, tenant_id)
        await connection.execute(_BACK, tenant_id, UUID(int=turn_id.int - 1))
