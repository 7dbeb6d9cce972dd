"""How the turns of versions fared, for a gate to compare."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from gateway.records import Tally, first_id
from gateway.store.database import Database

# Ids sort by time, so that the newest turns are found without an index of their own. A reply is
# counted once it is there, its score once there is one.
_TALLIES = """
SELECT count(*)::int AS turns, count(*) FILTER (WHERE failed)::int AS errors,
    sum(ln(1 + completion_len))::float8 AS log_length,
    count(score)::int AS judged, coalesce(sum(score), 0)::float8 AS score
FROM (
    SELECT t.session_id, t.completion_len, j.score,
        t.finish_reason IN ('abort', 'length') OR t.stream_mismatch AS failed
    FROM turns t LEFT JOIN LATERAL (
        SELECT score FROM judgements j WHERE j.turn_id = t.id AND j.state = 'done'
        ORDER BY j.round DESC LIMIT 1
    ) j ON true
    WHERE t.lineage_id = $1 AND t.kind = 'main' AND t.id >= $3
      AND t.version_min = ANY($2::int8[]) AND t.version_max = ANY($2::int8[])
    ORDER BY t.id DESC LIMIT $4
) AS recent
GROUP BY session_id ORDER BY session_id
"""


class Evidence:
    """Reads turns and their latest scores. Raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tallies(
        self, lineage_id: UUID, versions: Sequence[int], since: float, limit: int
    ) -> list[Tally]:
        """Main-line turns sampled by these versions alone, by session; the newest `limit` turns.

        `since` is in seconds since the epoch.
        """
        rows = await self._database.fetch(
            _TALLIES, lineage_id, list(versions), first_id(since), limit
        )
        return [Tally(**dict(row)) for row in rows]
