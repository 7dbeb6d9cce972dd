"""Runs the migrations on the database that `DATABASE_URL` or the settings name.

One transaction for all of them, under an advisory lock: installs that race wait for each other.
"""

from __future__ import annotations

import asyncio

import asyncpg
from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from gateway.config import Settings, load
from gateway.store.schema import Base

#: The bytes of "nextstat": one lock a database, whoever migrates it.
_LOCK = 0x6E65787473746174


def _url() -> str:
    url: str | None = context.config.attributes.get("url")
    return url or load(Settings).database_url


def _run(connection: Connection) -> None:
    with connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        context.configure(connection=connection, target_metadata=Base.metadata)
        context.run_migrations()


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
