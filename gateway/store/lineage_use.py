"""Who uses which lineage: the tenants of which a key that is still taken names it."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from gateway.store.database import Database
from gateway.store.keys import VALID

_OTHERS = f"""
SELECT EXISTS (
    SELECT FROM api_keys k WHERE k.lineage_id = $1 AND k.tenant_id <> $2 AND {VALID}
)
"""  # noqa: S608 - made of constants


def used_by(tenant: str) -> str:
    """SQL for the ids of the lineages that a tenant, given as SQL, uses."""
    return f"(SELECT k.lineage_id FROM api_keys k WHERE k.tenant_id = {tenant} AND {VALID})"  # noqa: S608


async def is_shared(
    database: Database | asyncpg.Connection, lineage_id: UUID, tenant_id: UUID
) -> bool:
    """Whether others than this tenant use a lineage too. Raises StoreUnavailable."""
    found: bool = await database.fetchval(_OTHERS, lineage_id, tenant_id)
    return found
