"""How much is served, and how fast, in steps of time."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from gateway.store.database import Database
from gateway.store.periods import bounds

Found = dict[str, Any]

TRAFFIC = """
SELECT floor(extract(epoch FROM t.created_at) / $4::int8)::int8 * $4::int8 AS at, count(*) AS turns,
    count(*) FILTER (WHERE t.kind = 'main') AS main,
    count(*) FILTER (WHERE t.finish_reason = 'abort') AS aborted,
    count(*) FILTER (WHERE t.stream_mismatch) AS mismatches,
    sum(t.prompt_len)::int8 AS prompt_tokens, sum(t.completion_len)::int8 AS completion_tokens,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY t.total_ms::float8) AS ms_p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY t.total_ms::float8) AS ms_p95,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY t.first_token_ms::float8) AS first_token_ms_p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY t.first_token_ms::float8) AS first_token_ms_p95
FROM turns t
WHERE t.id >= $1 AND t.id < $2 AND ($3::uuid IS NULL OR t.tenant_id = $3)
GROUP BY 1 ORDER BY 1
"""


async def traffic(
    database: Database, tenant_id: UUID | None, since: float, until: float, bucket_s: int
) -> list[Found]:
    """Turns made in [since, until) seconds, by steps of `bucket_s`; none where nothing was served.

    Percentiles are of milliseconds from the arrival of a request.
    """
    first, last = bounds(since, until)
    rows = await database.fetch(TRAFFIC, first, last, tenant_id, bucket_s)
    return [dict(row) for row in rows]
