"""Runs the migrations on the database that `DATABASE_URL` or the settings name.

One transaction for all of them, under an advisory lock: installs that race wait for each other.
No lock on a table is waited for longer than `_LOCK_TIMEOUT`, since everybody else would wait behind
it. A CHECK that a migration adds NOT VALID is validated after the commit, while others read and
write, and so are the indexes built that it names in `CONCURRENTLY`. What did not come to an end is
taken up by the next run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import asyncpg
from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from gateway.config import Settings, load
from gateway.store.schema import Base

#: The bytes of "nextstat": one lock a database, whoever migrates it.
_LOCK = 0x6E65787473746174
_LOCK_TIMEOUT = "3s"
#: Who builds indexes, one at a time. Asked for again and again: a statement that waits would be
#: an old transaction, for the end of which the builder waits.
_BUILDING = _LOCK + 1
_BUILDING_POLL_S = 0.2
#: How long a build waits for transactions that are older. Nobody waits behind it.
_BUILD_TIMEOUT = "60s"

_NOT_VALID = """
SELECT conrelid::regclass::text, quote_ident(conname) FROM pg_constraint
WHERE connamespace = current_schema()::regnamespace AND NOT convalidated
ORDER BY 1, 2
"""
_INDEXES = """
SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = current_schema()::regnamespace
"""


def _url() -> str:
    url: str | None = context.config.attributes.get("url")
    return url or load(Settings).database_url


def _run(connection: Connection) -> None:
    with connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
        context.configure(connection=connection, target_metadata=Base.metadata)
        context.run_migrations()
    with connection.begin():
        left = connection.execute(text(_NOT_VALID)).all()
    for table, name in left:
        with connection.begin():
            connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
            connection.execute(text(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}"))
    with connection.begin():
        named = dict(_named(context.get_context().get_current_heads()))
    if named:
        _build(connection.execution_options(isolation_level="AUTOCOMMIT"), named)


def _named(heads: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The indexes that the revisions up to these leave to be built after the commit."""
    for revision in context.script.iterate_revisions(heads, "base"):
        yield from getattr(revision.module, "CONCURRENTLY", {}).items()


def _build(connection: Connection, named: dict[str, str]) -> None:
    """Build what is missing of these, and again what an earlier run left half built."""
    while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _BUILDING}):
        time.sleep(_BUILDING_POLL_S)
    connection.execute(text(f"SET lock_timeout = '{_BUILD_TIMEOUT}'"))
    valid = {row[0]: row[1] for row in connection.execute(text(_INDEXES))}
    for name, what in named.items():
        if valid.get(name) is False:
            connection.execute(text(f"DROP INDEX CONCURRENTLY {name}"))
        if not valid.get(name):
            connection.execute(text(f"CREATE INDEX CONCURRENTLY {name} ON {what}"))


async def _online(url: str) -> None:
    # asyncpg reads the URL itself, so that every form the pool takes works here too.
    engine = create_async_engine(
        "postgresql+asyncpg://",
        poolclass=NullPool,
        async_creator=lambda: asyncpg.connect(url, timeout=30),
    )
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_run)
    finally:
        await engine.dispose()


def _offline() -> None:
    context.configure(
        dialect_name="postgresql",
        target_metadata=Base.metadata,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    _offline()
else:
    asyncio.run(_online(_url()))
