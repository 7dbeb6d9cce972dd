"""The newest turn of a session's main line, seen from one of its ancestors."""

from __future__ import annotations

from uuid import UUID

from gateway.resolve import Leaf
from gateway.store.database import Database

#: How many turns a user can go back at once, to be seen as going back.
_MOST_TURNS_BACK = 256

# $1 tenant, $2 session, $3 the ancestor. Only a turn below the ancestor counts. What is compared by
# IS NOT DISTINCT FROM is no way to an index, and the order of a single row keeps each step of the
# recursion a look-up by id: statistics of an empty table make any plan look as good as this one.
LEAF = f"""
WITH RECURSIVE leaf AS (
    SELECT id, parent_id, depth, kind, messages, tools_hash, delivered, request_hash, retry_of
    FROM turns
    WHERE session_id = $2 AND tenant_id IS NOT DISTINCT FROM $1 AND kind <> 'side'
    ORDER BY id DESC LIMIT 1
), line AS (
    SELECT id, parent_id, messages, 0 AS up FROM leaf WHERE kind = 'main'
    UNION ALL
    SELECT t.id, t.parent_id, t.messages, line.up + 1
    FROM line CROSS JOIN LATERAL (
        SELECT id, parent_id, messages FROM turns
        WHERE id >= line.parent_id AND id <= line.parent_id ORDER BY id LIMIT 1
    ) t
    WHERE line.parent_id <> $3 AND line.up < {_MOST_TURNS_BACK}
)
SELECT leaf.id, line.messages AS asked, leaf.tools_hash, leaf.delivered,
    coalesce((SELECT true FROM next_states n WHERE n.turn_id = leaf.id LIMIT 1),
        (SELECT true FROM turns c WHERE c.parent_id = leaf.id AND c.kind <> 'side' LIMIT 1),
        false) AS followed,
    (SELECT count(*) FROM turns s WHERE s.parent_id = leaf.parent_id
        AND s.request_hash IS NOT DISTINCT FROM leaf.request_hash
        AND s.id <> leaf.id AND s.retry_of IS NULL
        AND s.id IS DISTINCT FROM leaf.retry_of) AS siblings
FROM leaf JOIN line ON line.parent_id = $3
"""  # noqa: S608 - made of constants


async def find_leaf(
    database: Database, tenant_id: UUID, session_id: UUID, ancestor_id: UUID, timeout_s: float
) -> Leaf | None:
    """None where the newest turn does not descend from the ancestor. Raises StoreUnavailable."""
    rows = await database.look_up(LEAF, tenant_id, session_id, ancestor_id, timeout_s=timeout_s)
    if not rows:
        return None
    [row] = rows
    return Leaf(
        turn_id=row["id"],
        asked=tuple(row["asked"]),
        tools_hash=row["tools_hash"],
        followed=row["followed"],
        delivered=row["delivered"],
        siblings=row["siblings"],
    )
