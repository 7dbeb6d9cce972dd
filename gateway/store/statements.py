"""The SQL that a commit is made of: piece by piece, and as one statement for what is common.

Every piece leaves as it is what is there already. They work on the rows `r` of a parameter.
Rows are found by their keys, one by one: while tables are empty any index, or all of one, would
seem as good, and a plan is kept. Hence no joins, no EXISTS, and IS NOT DISTINCT FROM, which no
index answers.
"""

from __future__ import annotations

from gateway.store.database import REVISIONS
from gateway.store.rows import FEEDBACK, NEXT_STATES, SESSIONS, TURNS

INSERT_SESSIONS = f"{SESSIONS.insert(SESSIONS.sent(1))} ON CONFLICT DO NOTHING"

SESSIONS_NAMED = """
SELECT s.id, s.tenant_id, s.external_id FROM sessions s
JOIN unnest($1::uuid[], $2::text[]) AS r(tenant_id, external_id)
USING (tenant_id, external_id)
"""

PROMOTE = """
UPDATE turns t SET kind = 'main', kind_rule = 'promoted_when_extended'
FROM next_states n
WHERE n.turn_id = t.id AND t.kind = 'unknown' AND t.id = ANY($1::uuid[])
"""


def _touch(seen: str) -> str:
    """Mark the sessions of the rows `r` as seen.

    A turn from before the end, stored after it, leaves why and when it was the end.
    The session is open all the same until it is looked at again: that turn has no verdict yet.
    """
    return f"""
UPDATE sessions s SET
    last_seen = greatest(s.last_seen, to_timestamp(r.seen)),
    status = 'open',
    end_reason = CASE WHEN s.ended_at >= to_timestamp(r.seen) THEN s.end_reason END,
    ended_at = CASE WHEN s.ended_at >= to_timestamp(r.seen) THEN s.ended_at END
FROM {seen}
WHERE s.id = r.id
RETURNING s.id
"""  # noqa: S608 - made of constants


def _echoes(turns: str) -> str:
    """Store the echoes of the turns `r`, in one order everywhere.

    So that two writers of the same rows do not wait for each other.
    """
    return f"""
INSERT INTO echoes (tenant_id, id, turn_id)
SELECT r.tenant_id, e.id, r.id FROM {turns} CROSS JOIN json_array_elements_text(r.echoes) AS e(id)
ORDER BY r.tenant_id, e.id COLLATE "C", r.id
ON CONFLICT DO NOTHING
"""  # noqa: S608 - made of constants


def _skip(ids: str) -> str:
    return f"""
UPDATE judgements SET state = 'skipped', reason = 'side', done_at = now()
WHERE state IS NOT DISTINCT FROM 'queued' AND turn_id = ANY({ids})
"""  # noqa: S608


TOUCH_SESSIONS = _touch("unnest($1::uuid[], $2::float8[]) AS r(id, seen)")
#: Of the rows of turns.
INSERT_ECHOES = _echoes(TURNS.sent(1))
SKIP_SIDE = _skip("$1::uuid[]")

# A turn's job has the next free round, unless one waits already; a side turn has none.
_QUEUE = """
INSERT INTO judgements (turn_id, round, tenant_id, run_after)
SELECT DISTINCT ON (new.turn_id) new.turn_id,
    coalesce((SELECT max(j.round) FROM judgements j WHERE j.turn_id = new.turn_id), 0) + 1,
    new.tenant_id, least(now(), new.arrived_at)
FROM new
WHERE coalesce((SELECT t.kind FROM turns t WHERE t.id = new.turn_id LIMIT 1), '') <> 'side'
  AND (SELECT count(*) FROM judgements j
    WHERE j.turn_id = new.turn_id AND j.state IS NOT DISTINCT FROM 'queued') = 0
ON CONFLICT DO NOTHING
RETURNING turn_id
"""

#: Of a turn that is not there, whether it was erased is looked up by a digest.
_ERASED = "SELECT count(*) FROM erasures e WHERE e.digest = sha256(uuid_send(r.turn_id))"


def _own(revision: str) -> str:
    """Of a turn that is not there yet, nobody knows whose it is; of one erased nothing is said."""
    whose = "r.tenant_id"
    if revision > "0002":
        whose = f"CASE WHEN ({_ERASED}) = 0 THEN r.tenant_id END"
    return f"""
coalesce((SELECT t.tenant_id FROM turns t WHERE t.id = r.turn_id LIMIT 1), {whose})
= r.tenant_id
"""  # noqa: S608 - made of constants


def _turns(revision: str) -> str:
    return f"{TURNS.at(revision).insert(TURNS.sent(1))} ON CONFLICT (id) DO NOTHING"


def _following(revision: str, parameter: int) -> str:
    """CTEs `sent`, `added` and `new`: next states, those that are first, those to be judged."""
    table = NEXT_STATES.at(revision)
    return f"""
sent AS (SELECT r.* FROM {NEXT_STATES.sent(parameter)}), added AS (
    {table.insert("sent r")} WHERE {_own(revision)}
    ON CONFLICT (turn_id) DO NOTHING
    RETURNING turn_id, tenant_id, arrived_at
), new AS (
    SELECT added.* FROM added JOIN sent USING (turn_id) WHERE sent.judge
)
"""  # noqa: S608


def _next_states(revision: str) -> str:
    return f"WITH {_following(revision, 1)} {_QUEUE}"


def _feedback(revision: str) -> str:
    return f"""
WITH new AS (
    {FEEDBACK.at(revision).insert(FEEDBACK.sent(1))} WHERE {_own(revision)}
    ON CONFLICT DO NOTHING
    RETURNING turn_id, tenant_id, created_at AS arrived_at
)
{_QUEUE}
"""


def _with_turns(revision: str) -> str:
    """CTEs with which sessions and turns are written, parameters 1 and 2.

    No part sees what another writes: a new session is inserted as it was seen last, and a turn
    that something has followed already, spooled and late, is promoted as it comes.
    """
    last = "SELECT h.seen FROM heard h WHERE h.id = r.id"
    sessions = SESSIONS.insert("opened r", last_seen=f"to_timestamp(({last}))")
    later = "SELECT true FROM next_states n WHERE n.turn_id = r.id LIMIT 1"
    followed = f"r.kind = 'unknown' AND coalesce(({later}), false)"
    turns = TURNS.at(revision).insert(
        "told r",
        kind=f"CASE WHEN {followed} THEN 'main' ELSE r.kind END",
        kind_rule=f"CASE WHEN {followed} THEN 'promoted_when_extended' ELSE r.kind_rule END",
    )
    return f"""
opened AS (SELECT r.* FROM {SESSIONS.sent(1)}),
told AS (SELECT r.* FROM {TURNS.sent(2)}),
heard AS (
    SELECT r.id, max(r.seen) AS seen FROM (
        SELECT id, last_seen FROM opened UNION ALL SELECT session_id, created_at FROM told
    ) AS r(id, seen) GROUP BY r.id ORDER BY r.id
),
met AS ({sessions} ON CONFLICT DO NOTHING RETURNING id),
seen AS ({_touch("heard r")}),
turned AS ({turns} ON CONFLICT (id) DO NOTHING),
echoed AS ({_echoes("told r")}),
skipped AS ({_skip("ARRAY(SELECT id FROM told WHERE kind = 'side')")})
"""  # noqa: S608 - made of constants


def _with_next_states(revision: str, parameter: int) -> str:
    """CTEs with which next states are written, their jobs queued and their turns promoted."""
    return f"""
{_following(revision, parameter)},
queued AS ({_QUEUE}),
promoted AS (
    UPDATE turns t SET kind = 'main', kind_rule = 'promoted_when_extended'
    WHERE t.id = ANY(ARRAY(SELECT sent.turn_id FROM sent)) AND t.kind = 'unknown'
        AND t.tenant_id = (SELECT sent.tenant_id FROM sent WHERE sent.turn_id = t.id LIMIT 1)
)
"""  # noqa: S608


#: Divides by zero, which undoes the whole statement, where a session is there by another name:
#: `store` is to find out. The divisor is no constant that could be divided by beforehand.
_ALL_MET = """
SELECT 1 / (1 - EXISTS (
    SELECT FROM opened r
    WHERE r.id NOT IN (SELECT id FROM met UNION ALL SELECT id FROM seen)
)::int)
"""
_ANY_QUEUED = "SELECT EXISTS (SELECT FROM queued)"


#: By the schema's revision: this build runs on the last two.
INSERT_TURNS = {revision: _turns(revision) for revision in REVISIONS[-2:]}
INSERT_NEXT_STATES = {revision: _next_states(revision) for revision in REVISIONS[-2:]}
INSERT_FEEDBACK = {revision: _feedback(revision) for revision in REVISIONS[-2:]}

#: Sessions, turns, or both with next states, in one statement each.
TURNS_AT_ONCE = {
    revision: f"WITH {_with_turns(revision)} SELECT false WHERE 1 = ({_ALL_MET})"
    for revision in REVISIONS[-2:]
}
NEXT_STATES_AT_ONCE = {
    revision: f"WITH {_with_next_states(revision, 1)} {_ANY_QUEUED}" for revision in REVISIONS[-2:]
}
ALL_AT_ONCE = {
    revision: f"WITH {_with_turns(revision)}, {_with_next_states(revision, 3)}"
    f" {_ANY_QUEUED} WHERE 1 = ({_ALL_MET})"
    for revision in REVISIONS[-2:]
}
