"""The SQL by which sessions end."""

from __future__ import annotations

# A session that was ended, but for a turn that was stored late, stays ended as it was.
# No turn is left without a word: those that nothing followed say so.
_CLOSE = """
, closed AS (
    UPDATE sessions s SET status = 'closed', end_reason = coalesce(s.end_reason, $1),
        ended_at = coalesce(s.ended_at, now())
    FROM chosen WHERE s.id = chosen.id RETURNING s.id
), silent AS (
    INSERT INTO verdicts (turn_id, outcome, reason)
    SELECT t.id, 'unscored', 'no_next_state'
    FROM closed JOIN turns t ON t.session_id = closed.id
    WHERE t.kind <> 'side'
      AND NOT EXISTS (SELECT FROM next_states n WHERE n.turn_id = t.id)
      AND NOT EXISTS (SELECT FROM judgements j WHERE j.turn_id = t.id)
    ON CONFLICT DO NOTHING
)
SELECT count(*) FROM closed
"""

#: $1 the tenant, $2 the session. A turn that is being stored holds the session, and what waits for
#: it has to look anew: a statement does not see what was stored while it waited.
LOCK_SESSION = "SELECT id FROM sessions WHERE tenant_id = $1 AND id = $2 FOR UPDATE"

#: $1 the reason, $2 the tenant, $3 the session, which is locked.
END_SESSION = f"""
WITH chosen AS (
    SELECT id FROM sessions WHERE tenant_id = $2 AND id = $3 AND status = 'open'
){_CLOSE}
"""  # noqa: S608

#: $1 the reason, $2 for how many seconds it was not seen, $3 at most how many.
CLOSE_IDLE = f"""
WITH chosen AS (
    SELECT id FROM sessions
    WHERE status = 'open' AND last_seen < now() - make_interval(secs => $2)
    ORDER BY last_seen LIMIT $3 FOR UPDATE SKIP LOCKED
){_CLOSE}
"""  # noqa: S608
