"""Fixtures that many tests share: a real PostgreSQL, and a fresh migrated database a test."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import structlog

from gateway.config import DatabaseSettings
from gateway.local.postgres import EmbeddedPostgres
from gateway.store.database import Database, migrate

if (Path(__file__).parent / "fixtures_engine.py").is_file():
    pytest_plugins = ["tests.fixtures_engine", "tests.fixtures_gateway"]

_TEMPLATE = "migrated"


def on_database(url: str, name: str) -> str:
    """The same server's URL with another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def run_sql(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """No test leaves a handler behind that writes to its captured streams."""
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**config)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A server of this test session's own, not durable and therefore fast."""
    home = Path(tempfile.mkdtemp(prefix="nxs-"))
    server = EmbeddedPostgres(
        home,
        settings={"fsync": "off", "full_page_writes": "off", "max_connections": "200"},
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def migrated_template(postgres: EmbeddedPostgres) -> str:
    """The name of a database that each test's own is cloned from."""

    async def build() -> None:
        await run_sql(postgres.url, f"CREATE DATABASE {_TEMPLATE}")
        await migrate(on_database(postgres.url, _TEMPLATE))

    asyncio.run(build())
    return _TEMPLATE


_numbers = itertools.count()


async def _database(server: EmbeddedPostgres, template: str) -> AsyncIterator[str]:
    name = f"test_{next(_numbers)}"
    await run_sql(server.url, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield on_database(server.url, name)
    finally:
        await run_sql(server.url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def database_url(postgres: EmbeddedPostgres, migrated_template: str) -> AsyncIterator[str]:
    """The URL of a fresh, migrated database."""
    async for url in _database(postgres, migrated_template):
        yield url


@pytest.fixture
async def empty_database_url(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """The URL of a database without any table."""
    async for url in _database(postgres, "template0"):
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open `Database` on a fresh, migrated database."""
    database = await Database.open(DatabaseSettings(), database_url, application="test")
    try:
        yield database
    finally:
        await database.close()
