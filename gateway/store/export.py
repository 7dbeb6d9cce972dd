"""All samples of a lineage with what became of them, and why turns are not among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

from gateway.records import TrainingSample
from gateway.store.database import Database
from gateway.store.samples import SampleStore

_PAGE = 64

_NEXT = """
SELECT id, arrived_at, state, reason FROM samples
WHERE lineage_id = $1 AND ($2::timestamptz IS NULL OR (arrived_at, id) > ($2, $3))
ORDER BY arrived_at, id LIMIT $4
"""

# A sample that is ready waits for a later step, unless the schedule knows better.
_OUTCOMES = """
SELECT t.id, CASE
    WHEN v.turn_id IS NOT NULL AND v.outcome <> v.reason THEN v.outcome || ': ' || v.reason
    WHEN v.turn_id IS NOT NULL THEN v.outcome
    WHEN s.state = 'ready' THEN 'later'
    WHEN s.state IS NOT NULL THEN s.state
    WHEN NOT t.trainable THEN 'untrainable: ' || t.untrainable_reason
    WHEN t.kind <> 'main' THEN 'kind: ' || t.kind
    WHEN n.turn_id IS NULL THEN 'no next state yet'
    ELSE 'no verdict yet' END AS outcome
FROM turns t
LEFT JOIN verdicts v ON v.turn_id = t.id
LEFT JOIN LATERAL (
    SELECT s.state FROM samples s WHERE s.turn_id = t.id AND s.lineage_id = $1 LIMIT 1
) s ON true
LEFT JOIN next_states n ON n.turn_id = t.id
WHERE t.lineage_id = $1
ORDER BY t.id DESC LIMIT $2
"""


@dataclass(frozen=True, slots=True)
class Exported:
    """A sample, its state, and the reason where it was dropped."""

    sample: TrainingSample
    state: str
    reason: str | None


class Exports:
    """Reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def samples(self, lineage_id: UUID) -> AsyncIterator[Exported]:
        """Every sample, the oldest arrival first; one whose chain has a gap is left out."""
        store, after, last = SampleStore(self._database), None, UUID(int=0)
        while rows := await self._database.fetch(_NEXT, lineage_id, after, last, _PAGE):
            loaded = {one.id: one for one in await store.load([row["id"] for row in rows])}
            for row in rows:
                if (sample := loaded.get(row["id"])) is not None:
                    yield Exported(sample, row["state"], row["reason"])
            after, last = rows[-1]["arrived_at"], rows[-1]["id"]

    async def outcomes(self, lineage_id: UUID, limit: int) -> list[tuple[UUID, str]]:
        """The newest turns, and what became of each or keeps it from a step, newest first."""
        rows = await self._database.fetch(_OUTCOMES, lineage_id, limit)
        return [(row["id"], row["outcome"]) for row in rows]
