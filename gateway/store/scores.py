"""How turns were scored: counts, means and their intervals, by what they are grouped by.

A turn's score is that of the last round that judged it. Turns are found by their ids, which begin
with their time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from gateway.store.database import Database
from gateway.store.periods import bounds

Found = dict[str, Any]

_MOST_GROUPS = 1000
#: The 97.5 % quantile of the normal distribution.
_Z = 1.959963984540054


class By(StrEnum):
    TIME = "time"
    VERSION = "version"
    TENANT = "tenant"
    CLIENT = "client"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which turns: made in [since, until) seconds, of a lineage, version or client; None is any.

    `bucket_s` is the length of a group by time.
    """

    since: float | None = None
    until: float | None = None
    lineage_id: UUID | None = None
    version: int | None = None
    client: str | None = None
    bucket_s: int = 3600


#: What a group is named by, and what must be joined for it.
_KEYS = {
    By.TIME: ("floor(extract(epoch FROM t.created_at) / $8::int8)::int8 * $8::int8", ""),
    By.VERSION: ("t.version_min", ""),
    By.TENANT: ("n.name", "LEFT JOIN tenants n ON n.id = t.tenant_id"),
    By.CLIENT: ("s.client", ""),
    By.TOOL: (
        "c.tool",
        """LEFT JOIN LATERAL (
        SELECT DISTINCT call -> 'function' ->> 'name' AS tool
        FROM jsonb_array_elements(CASE jsonb_typeof(t.reply -> 'tool_calls')
            WHEN 'array' THEN t.reply -> 'tool_calls' ELSE '[]' END) AS call
    ) c ON true""",
    ),
}

_SQL = """
WITH latest AS (
    SELECT DISTINCT ON (j.turn_id) j.turn_id, j.score FROM judgements j
    WHERE j.turn_id >= $1 AND j.turn_id < $2 AND j.state = 'done'
      AND ($3::uuid IS NULL OR j.tenant_id = $3)
    ORDER BY j.turn_id, j.round DESC
)
SELECT {key} AS key, t.lineage_id, l.name AS lineage, count(*) AS n,
    avg(latest.score)::float8 AS mean, stddev_samp(latest.score)::float8 AS deviation,
    count(*) FILTER (WHERE latest.score < 0) AS negative,
    count(*) FILTER (WHERE latest.score = 0) AS neutral,
    count(*) FILTER (WHERE latest.score > 0) AS positive
FROM latest JOIN turns t ON t.id = latest.turn_id
JOIN sessions s ON s.id = t.session_id
LEFT JOIN lineages l ON l.id = t.lineage_id
{join}
WHERE latest.score IS NOT NULL AND t.kind = 'main' AND $8::int8 > 0
  AND ($3::uuid IS NULL OR t.tenant_id = $3)
  AND ($4::uuid IS NULL OR t.lineage_id = $4)
  AND ($5::int8 IS NULL OR t.version_min = $5)
  AND ($6::text IS NULL OR s.client = $6)
GROUP BY 1, 2, 3 ORDER BY {order} LIMIT $7
"""


async def scores(database: Database, tenant_id: UUID | None, by: By, asked: Asked) -> Found:
    """`{"by", "items": [{"key", "lineage", "n", "mean", "low", "high", …}], "truncated"}`.

    `low` and `high` bound the 95 % interval of the mean by Student's t, None for one score; scores
    of the turns of one session are taken as independent. Groups are apart by lineage, whose
    versions are its own; a turn that calls several tools counts for each. `version` is the oldest
    one that sampled a token of the turn.
    """
    sql = statement(by)
    first, last = bounds(asked.since, asked.until)
    rows = await database.fetch(
        sql,
        first,
        last,
        tenant_id,
        asked.lineage_id,
        asked.version,
        asked.client,
        _MOST_GROUPS + 1,
        asked.bucket_s,
    )
    items = [_group(dict(row)) for row in rows[:_MOST_GROUPS]]
    if by is By.TIME:
        items.reverse()
    return {"by": by.value, "items": items, "truncated": len(rows) > _MOST_GROUPS}


def statement(by: By) -> str:
    """The query, for one grouping: the latest times and versions first, else the largest groups."""
    key, join = _KEYS[by]
    order = "1 DESC NULLS LAST, 2" if by in (By.TIME, By.VERSION) else "n DESC, 1, 2"
    return _SQL.format(key=key, join=join, order=order)


def _group(row: Found) -> Found:
    deviation = row.pop("deviation")
    low, high = interval(row["n"], row["mean"], deviation)
    return {**row, "low": low, "high": high}


def interval(n: int, mean: float, deviation: float | None) -> tuple[float | None, float | None]:
    """The 95 % interval of a mean of `n` scores, cut to [-1, 1]; Nones below two of them.

    mean ± t · deviation / √n, `deviation` being the sample's (n - 1 degrees of freedom).
    """
    if n < 2 or deviation is None:
        return None, None
    half = student(n - 1) * deviation / math.sqrt(n)
    return max(-1.0, mean - half), min(1.0, mean + half)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, within 0.2 % of it.

    Exact for one and two degrees of freedom; from three on Abramowitz and Stegun 26.7.5.
    """
    if freedom == 1:
        return math.tan(0.475 * math.pi)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    z, v = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
