"""What an independent judge said of turns: rounds below 0, which are no verdicts.

Round -k is the audit of round k. The latest round of a turn, whose score counts, is never one.
"""

from __future__ import annotations

from gateway.records import JudgeJob, Judgement
from gateway.store.database import Database
from gateway.store.packing import scrub

# An audit takes its time: the turn may have been erased meanwhile, and nothing is said of it then.
_PUT = """
INSERT INTO judgements (turn_id, round, tenant_id, state, attempts, judge, score, confidence,
    reason, votes, usage, done_at)
SELECT t.id, $2, $3, 'done', 1, $4, $5, $6, $7, $8, $9, now()
FROM turns t WHERE t.id = $1 FOR KEY SHARE
ON CONFLICT DO NOTHING
"""


class Audits:
    """Raises StoreUnavailable where Postgres is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, job: JudgeJob, judgement: Judgement) -> bool:
        """Store an audit of a job; False where it has one, or where its turn is gone."""
        done = await self._database.execute(
            _PUT,
            job.turn_id,
            -job.round,
            job.tenant_id,
            judgement.judge,
            judgement.score,
            judgement.confidence,
            scrub(judgement.reason),
            scrub(list(judgement.votes)),
            None if judgement.usage is None else scrub(dict(judgement.usage)),
        )
        return done == "INSERT 0 1"
