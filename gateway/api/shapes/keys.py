"""API keys."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from gateway.api.shapes.base import Next, Shape, Time
from gateway.records import Role


class Key(Shape):
    """A key; of its secret, `hint` are the first characters."""

    id: UUID
    tenant_id: UUID
    tenant: str
    lineage_id: UUID
    lineage: str
    name: str
    hint: str
    role: Role
    capture: bool
    on_stale: Literal["serve", "reject"]
    sampling: dict[str, float] | None
    limits: dict[str, int] | None
    state: Literal["valid", "expired", "revoked"]
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None


class NewKey(Key):
    """A key with its secret, which is shown this once."""

    secret: str


class KeyPage(Shape):
    items: list[Key]
    next: Next
