"""Sessions."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from gateway.api.shapes.base import Next, Shape, Time
from gateway.api.shapes.turns import Turn


class SessionHead(Shape):
    """A session; `external_id` is its client's own name for it."""

    id: UUID
    tenant_id: UUID
    external_id: str | None
    key_id: UUID
    key_name: str | None
    lineage_id: UUID
    resolved_by: str
    ambiguous: bool
    client: str
    end_user: str | None
    model: str
    parent_session_id: UUID | None
    status: Literal["open", "closed"]
    end_reason: str | None
    first_seen: Time
    last_seen: Time
    ended_at: Time | None
    turns: int
    main_turns: int
    scored_turns: int
    mean_score: float | None


class Session(SessionHead):
    """A session with a page of its turns; `parent_id` makes a tree of them."""

    items: list[Turn]
    next: Next


class SessionPage(Shape):
    items: list[SessionHead]
    next: Next


class Closed(Shape):
    """`closed`: whether the session was still open."""

    id: UUID
    closed: bool
