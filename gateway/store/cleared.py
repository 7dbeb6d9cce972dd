"""Jobs that come in after the words of their turns are gone."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from gateway.store.expiry import REASON
from gateway.store.verdicts import put_verdict

# What somebody says of a turn needs none of its words to be heard.
_SKIP = """
UPDATE judgements j SET state = 'skipped', reason = $2, done_at = now(), lease_owner = NULL,
    lease_until = NULL
WHERE j.turn_id = ANY($1::uuid[]) AND j.state = 'leased'
  AND (SELECT t.text_cleared FROM turns t WHERE t.id = j.turn_id LIMIT 1)
  AND NOT EXISTS (SELECT FROM feedback f WHERE f.turn_id = j.turn_id)
RETURNING j.turn_id
"""


async def without_cleared(
    connection: asyncpg.Connection, claimed: Sequence[asyncpg.Record]
) -> list[asyncpg.Record]:
    """Leases without those of which there is nothing to judge: they are skipped, with a verdict."""
    if not claimed:
        return []
    rows = await connection.fetch(_SKIP, [row["turn_id"] for row in claimed], REASON)
    for row in rows:
        await put_verdict(connection, row["turn_id"], "dropped", REASON)
    gone = {row["turn_id"] for row in rows}
    return [row for row in claimed if row["turn_id"] not in gone]
