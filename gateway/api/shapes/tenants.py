"""Tenants."""

from __future__ import annotations

from uuid import UUID

from gateway.api.shapes.base import Next, Open, Shape, Time


class Tenant(Shape):
    """A tenant; `valid_keys` are those that are neither revoked nor expired."""

    id: UUID
    name: str
    settings: Open
    created_at: Time
    valid_keys: int


class TenantPage(Shape):
    items: list[Tenant]
    next: Next
