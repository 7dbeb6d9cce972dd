"""What somebody changed through the admin API: an audit entry each, in the change's transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from gateway.records import Principal, new_id
from gateway.store.once import Once
from gateway.store.packing import scrub
from gateway.telemetry import get_logger

log = get_logger(__name__)

_NOTE = """
INSERT INTO audit_entries (id, tenant_id, actor, action, subject) VALUES ($1, $2, $3, $4, $5)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`action` is a name such as `key_created`, `target` the id or name of what was changed.

    `tenant_id` is whose it is, which for operators may be another than their own. No secret and
    nothing that people said goes into `detail`. With `once`, sent again it is made no second time.
    """

    who: Principal
    action: str
    target: str
    tenant_id: UUID
    detail: dict[str, Any] = field(default_factory=dict)
    once: Once | None = None


async def note_change(connection: asyncpg.Connection, change: Change) -> None:
    """Keep who changed what, for the tenant that it concerns, and log it."""
    mark = {} if change.once is None else change.once.noted()
    subject = scrub({"target": change.target, **change.detail, **mark})
    actor = str(change.who.key_id)
    await connection.execute(_NOTE, new_id(), change.tenant_id, actor, change.action, subject)
    log_change(change)


def log_change(change: Change) -> None:
    """For what keeps an entry of its own."""
    by = str(change.who.key_id)
    log.info("admin_change", action=change.action, target=change.target, by=by)
