"""Which lines of versions there are."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from gateway.records import PolicyKind
from gateway.store.database import Database

_NAMED = "SELECT id, name, base_model, kind, trains FROM lineages WHERE name = $1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """A named line of versions; `trains` is off for a control arm."""

    id: UUID
    name: str
    base_model: str
    kind: PolicyKind
    trains: bool


class LineageStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def named(self, name: str) -> Lineage | None:
        """The lineage of a name. Raises StoreUnavailable."""
        row = await self._database.fetchrow(_NAMED, name)
        if row is None:
            return None
        return Lineage(**{**dict(row), "kind": PolicyKind(row["kind"])})
