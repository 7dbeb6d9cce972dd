"""Fixtures that many tests share: a real PostgreSQL, and a migrated database a test."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
import structlog
from hypothesis import HealthCheck, settings

from gateway.config import DatabaseSettings
from gateway.local.postgres import EmbeddedPostgres
from gateway.store.database import Database, migrate
from tests.databases import Databases, on_database

if (Path(__file__).parent / "fixtures_engine.py").is_file():
    pytest_plugins = ["tests.fixtures_engine", "tests.fixtures_gateway", "tests.sharing"]

_TEMPLATE = "migrated"

#: The same examples each time, however slow the machine is; `--hypothesis-profile=search` takes
#: others.
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.register_profile("search", parent=settings.get_profile("same"), derandomize=False)
settings.load_profile("same")


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
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**config)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A server of this test session's own, not durable and therefore fast."""
    home = Path(tempfile.mkdtemp(prefix="nxs-"))
    server = EmbeddedPostgres(
        home,
        settings={
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": "200",
            # What it would count, and when, no test can tell; plans depend on it.
            "autovacuum": "off",
        },
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


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[Databases]:
    found = Databases(postgres.url, migrated_template)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
async def database_url(databases: Databases) -> AsyncIterator[str]:
    """The URL of a migrated database without rows."""
    url = await databases.take()
    try:
        yield url
    finally:
        databases.give_back(url)


@pytest.fixture
async def empty_database_url(databases: Databases) -> AsyncIterator[str]:
    """The URL of a database without any table."""
    url = await databases.take_bare()
    try:
        yield url
    finally:
        databases.give_back_bare(url)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open `Database` on a fresh, migrated database."""
    database = await Database.open(DatabaseSettings(), database_url, application="test")
    try:
        yield database
    finally:
        await database.close()
