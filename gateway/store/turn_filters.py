"""Which turns of a tenant are meant, and what of each is filtered by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from gateway.store.periods import bounds

#: A turn `t` with its session `s`, the last round of judging that gave a result `j`, and its
#: verdict `v`. $1 is the tenant; $2 to $15 are `TurnFilters.values`. The next parameter is $16.
FILTERED = """
FROM turns t JOIN sessions s ON s.id = t.session_id
LEFT JOIN LATERAL (
    SELECT score, rule FROM judgements j WHERE j.turn_id = t.id AND j.state = 'done'
    ORDER BY j.round DESC LIMIT 1
) j ON true
LEFT JOIN verdicts v ON v.turn_id = t.id
WHERE t.tenant_id = $1 AND t.id >= $2 AND t.id < $3
  AND ($4::uuid IS NULL OR t.session_id = $4)
  AND ($5::text IS NULL OR s.client = $5) AND ($6::text IS NULL OR s.end_user = $6)
  AND ($7::text IS NULL OR t.kind = $7) AND ($8::uuid IS NULL OR t.lineage_id = $8)
  AND ($9::int8 IS NULL OR $9 BETWEEN t.version_min AND t.version_max)
  AND ($10::float8 IS NULL OR j.score >= $10) AND ($11::float8 IS NULL OR j.score <= $11)
  AND ($12::text IS NULL OR j.rule = $12) AND ($13::text IS NULL OR v.outcome = $13)
  AND ($14::text IS NULL OR v.reason = $14) AND ($15::uuid IS NULL OR t.id = $15)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFilters:
    """What turns must be; None is any. They were made in [`since`, `until`) seconds.

    `version` is one that sampled a token of them, `rule` what their score came from.
    """

    since: float | None = None
    until: float | None = None
    session_id: UUID | None = None
    client: str | None = None
    end_user: str | None = None
    kind: Literal["main", "side", "unknown"] | None = None
    lineage_id: UUID | None = None
    version: int | None = None
    min_score: float | None = None
    max_score: float | None = None
    rule: str | None = None
    outcome: Literal["trained", "dropped", "untrainable", "unscored"] | None = None
    reason: str | None = None
    turn_id: UUID | None = None

    def values(self) -> tuple[object, ...]:
        """What `FILTERED` is asked with, after the tenant."""
        return (
            *bounds(self.since, self.until), self.session_id, self.client, self.end_user,
            self.kind, self.lineage_id, self.version, self.min_score, self.max_score, self.rule,
            self.outcome, self.reason, self.turn_id,
        )  # fmt: skip
