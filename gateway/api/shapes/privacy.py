"""What is answered of erasures."""

from __future__ import annotations

from uuid import UUID

from gateway.api.shapes.base import Shape


class TrainedVersion(Shape):
    """A version that was trained on what was erased; later ones of its lineage come from it."""

    lineage: str
    lineage_id: UUID
    version: int


class Erased(Shape):
    """`rows` are those that are gone, by table; `entry_id` names the audit entry."""

    entry_id: UUID
    sessions: int
    rows: dict[str, int]
    versions: list[TrainedVersion]
