"""What was changed and by whom, the latest first."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from gateway.store.database import Database, seconds
from gateway.store.pages import POSITION, page, position, wanted

# Ids are minted in the order of time.
_PAGE = f"""
SELECT a.id, a.actor, a.action, a.subject, {seconds("a.created_at")} AS created_at,
    0 AS {POSITION}
FROM audit_entries a
WHERE a.tenant_id = $1 AND ($2::uuid IS NULL OR a.id < $2) AND ($4::text IS NULL OR a.action = $4)
ORDER BY a.id DESC LIMIT $3
"""  # noqa: S608 - made of constants


async def audit(
    database: Database, tenant_id: UUID, action: str | None, cursor: str | None, limit: int
) -> dict[str, Any]:
    """Entries of one tenant. Raises StoreUnavailable, and InvalidRequest for a wrong cursor."""
    _, last = position(cursor)
    most = wanted(limit)
    rows = await database.fetch(_PAGE, tenant_id, last, most + 1, action)
    return page(rows, most, lambda row: row["id"])
