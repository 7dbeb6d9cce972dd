"""Upgrades while others work: no table is rewritten, no lock is held or waited for long."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from gateway.errors import StoreError
from gateway.store import database as database_module
from gateway.store.database import REVISIONS, migrate
from tests.conftest import run_sql
from tests.integration.test_store_migrations import (
    _DATA_OF_0001,
    _DATA_OF_0002,
    ROOT,
    engine,
)

_FILES = """
SELECT relname, relfilenode FROM pg_class
WHERE relkind IN ('r', 'i') AND relnamespace = 'public'::regnamespace
"""
_HELD = """
SELECT relation::regclass::text FROM pg_locks
WHERE pid = pg_backend_pid() AND locktype = 'relation' AND mode = 'AccessExclusiveLock'
"""
_READ = "SELECT relname FROM pg_stat_xact_user_tables WHERE seq_tup_read > 0"


def configured() -> Config:
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    return config


async def upgrade(url: str, revision: str) -> None:
    config = configured()
    config.attributes["url"] = url
    await asyncio.to_thread(command.upgrade, config, revision)


@pytest.mark.parametrize("revision", REVISIONS[1:])
async def test_no_table_is_rewritten_or_read_through_under_its_lock(
    empty_database_url: str, revision: str
) -> None:
    """Each upgrade on tables that hold rows, looked at before it is committed."""
    before = REVISIONS[REVISIONS.index(revision) - 1]
    await upgrade(empty_database_url, before)
    await run_sql(empty_database_url, _DATA_OF_0001)
    if before != "0001":
        await run_sql(empty_database_url, _DATA_OF_0002)
    script = ScriptDirectory.from_config(configured()).get_revision(revision)
    assert script is not None

    def upgraded(connection: Connection) -> tuple[set[str], set[str], set[str]]:
        files = {row[0]: row[1] for row in connection.execute(text(_FILES))}
        with Operations.context(MigrationContext.configure(connection)):
            script.module.upgrade()
        later = {row[0]: row[1] for row in connection.execute(text(_FILES))}
        held = {row[0] for row in connection.execute(text(_HELD))} & {*files}
        read = {row[0] for row in connection.execute(text(_READ))} & held
        return {name for name in files if later[name] != files[name]}, held, read

    built = engine(empty_database_url)
    async with built.begin() as connection:
        rewritten, held, read = await connection.run_sync(upgraded)
    await built.dispose()
    assert rewritten == set()
    assert "turns" in held
    assert read == set()


async def test_a_table_in_use_is_asked_for_again(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt gives up without a change; once the table is free the next one goes."""
    await upgrade(empty_database_url, REVISIONS[-2])
    reader = await asyncpg.connect(empty_database_url)
    transaction = reader.transaction()
    await transaction.start()
    await reader.execute("SELECT count(*) FROM turns")
    monkeypatch.setattr(database_module, "_LOCK_TRIES", 1)
    with pytest.raises(StoreError, match="found a table in use and went no further"):
        await migrate(empty_database_url)
    assert await reader.fetchval("SELECT version_num FROM alembic_version") == REVISIONS[-2]

    monkeypatch.setattr(database_module, "_LOCK_TRIES", 10)
    migrating = asyncio.create_task(migrate(empty_database_url))
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'relation')"
    watcher = await asyncpg.connect(empty_database_url)
    async with asyncio.timeout(60):
        while not await watcher.fetchval(waiting):
            await asyncio.sleep(0.02)
    await transaction.rollback()
    await migrating
    assert await watcher.fetchval("SELECT version_num FROM alembic_version") == REVISIONS[-1]
    await watcher.close()
    await reader.close()


async def test_what_is_left_not_valid_is_validated_after_the_upgrade(
    empty_database_url: str,
) -> None:
    await migrate(empty_database_url)
    await run_sql(
        empty_database_url,
        "ALTER TABLE tenants ADD CONSTRAINT \"has A name\" CHECK (name <> '') NOT VALID",
    )
    await migrate(empty_database_url)
    connection = await asyncpg.connect(empty_database_url)
    left = await connection.fetchval("SELECT count(*) FROM pg_constraint WHERE NOT convalidated")
    await connection.close()
    assert left == 0


_INDEXES = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indisvalid
"""


async def test_indexes_are_built_while_others_write(empty_database_url: str) -> None:
    """The builder waits for a transaction that is older; nobody waits for the builder."""
    await migrate(empty_database_url)
    older, other, watcher = [await asyncpg.connect(empty_database_url) for _ in range(3)]
    # An earlier run was killed: one index is missing, one half built.
    await watcher.execute("DROP INDEX turns_group")
    await watcher.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'echoes_turn'::regclass"
    )
    transaction = older.transaction()
    await transaction.start()
    write = "INSERT INTO echoes VALUES (gen_random_uuid(), 'key', gen_random_uuid())"
    await older.execute(write)
    await older.execute("UPDATE turns SET group_id = 'g'")
    migrating = asyncio.create_task(migrate(empty_database_url))
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid())"
    async with asyncio.timeout(60):
        while not await watcher.fetchval(waiting):
            await asyncio.sleep(0.02)
    await other.execute("SET lock_timeout = '1s'")
    await other.execute(write)
    await other.execute("UPDATE turns SET group_id = 'h'")
    assert not migrating.done()
    await transaction.commit()
    await migrating
    valid = {row[0] for row in await watcher.fetch(_INDEXES)}
    assert {"turns_group", "echoes_turn", "sessions_parent", "sessions_end_user"} <= valid
    for connection in (older, other, watcher):
        await connection.close()
