"""Who did what to whom, kept for good. No prompt, reply or secret is ever part of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg

from gateway.records import new_id
from gateway.store.packing import scrub

#: Actors that are no API key.
CLI, JOB = "cli", "job"

_ADD = """
INSERT INTO audit_entries (id, tenant_id, actor, action, subject) VALUES ($1, $2, $3, $4, $5)
"""
_SET = "UPDATE audit_entries SET subject = $2 WHERE id = $1"


async def add_entry(
    connection: asyncpg.Connection,
    tenant_id: UUID | None,
    actor: str,
    action: str,
    subject: dict[str, Any],
) -> UUID:
    """Note an action in the caller's transaction; `actor` is the id of a key, CLI or JOB."""
    entry_id = new_id()
    await connection.execute(_ADD, entry_id, tenant_id, actor, action, scrub(subject))
    return entry_id


async def set_subject(
    connection: asyncpg.Connection, entry_id: UUID, subject: dict[str, Any]
) -> None:
    """Say more of an action that goes on."""
    await connection.execute(_SET, entry_id, scrub(subject))
