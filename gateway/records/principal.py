"""Who is asking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class Role(StrEnum):
    """What an API key may do."""

    AGENT = "agent"
    ROLLOUT = "rollout"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who is asking: one API key, resolved. Everything it reaches is inside `tenant_id`.

    `limits` are the key's own, within those that are configured; `tenant_limits` are of all keys of
    the tenant together, and set by operators.
    """

    key_id: UUID
    tenant_id: UUID
    tenant: str
    name: str
    role: Role
    lineage_id: UUID
    capture: bool = True
    on_stale: str = "serve"
    sampling: Mapping[str, float] | None = None
    limits: Mapping[str, int] | None = None
    tenant_limits: Mapping[str, int] | None = None
