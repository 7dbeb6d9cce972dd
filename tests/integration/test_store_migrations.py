"""Migrations build what the models say, forward and back, alone and in a race."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from gateway.config import DatabaseSettings
from gateway.errors import RevisionMismatch, StoreError, StoreUnavailable
from gateway.store.database import REVISIONS, Database, migrate
from gateway.store.packing import pack_ids
from gateway.store.schema import Base
from gateway.store.writer import TurnWriter
from tests.conftest import run_sql
from tests.factories import session, turn

ROOT = Path(__file__).resolve().parents[2]

_CATALOG = """
SELECT 'column', table_name, column_name, data_type, is_nullable, column_default
FROM information_schema.columns
WHERE table_schema = 'public' AND table_name <> 'alembic_version'
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', ''
FROM pg_constraint
WHERE connamespace = 'public'::regnamespace
  AND conrelid <> coalesce(to_regclass('alembic_version'), 0)
UNION ALL
SELECT 'index', tablename, indexname, indexdef, '', '' FROM pg_indexes
WHERE schemaname = 'public' AND tablename <> 'alembic_version'
"""


def engine(url: str):
    return create_async_engine(
        "postgresql+asyncpg://",
        poolclass=NullPool,
        async_creator=lambda: asyncpg.connect(url),
    )


async def catalog(url: str) -> set[tuple[object, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return {tuple(row) for row in await connection.fetch(_CATALOG)}
    finally:
        await connection.close()


def alembic(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def test_models_and_migrations_agree(database_url: str):
    def differences(connection: Connection) -> list[object]:
        return compare_metadata(MigrationContext.configure(connection), Base.metadata)

    built = engine(database_url)
    async with built.connect() as connection:
        assert await connection.run_sync(differences) == []
    await built.dispose()


async def test_migrated_catalog_equals_that_of_the_models(
    database_url: str, empty_database_url: str
):
    built = engine(empty_database_url)
    async with built.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await built.dispose()
    expected = await catalog(empty_database_url)
    assert len(expected) > 200
    assert await catalog(database_url) == expected


async def test_bare_alembic_goes_up_and_down_again(empty_database_url: str):
    up = await asyncio.to_thread(alembic, empty_database_url, "upgrade", "head")
    assert up.returncode == 0, up.stderr
    assert await catalog(empty_database_url)
    down = await asyncio.to_thread(alembic, empty_database_url, "downgrade", "base")
    assert down.returncode == 0, down.stderr
    assert await catalog(empty_database_url) == set()


_DATA_OF_0001 = """
INSERT INTO tenants (id, name) VALUES ('00000000-0000-0000-0000-000000000001', 'one');
INSERT INTO lineages (id, name, base_model, kind)
VALUES ('00000000-0000-0000-0000-000000000002', 'default', 'tiny', 'lora');
INSERT INTO api_keys (id, tenant_id, lineage_id, name, hint, digest, role) VALUES
('00000000-0000-0000-0000-000000000003', '00000000-0000-0000-0000-000000000001',
 '00000000-0000-0000-0000-000000000002', 'agent', 'sk', sha256('x'), 'agent');
"""


async def test_data_of_an_earlier_revision_survives_up_and_down(
    empty_database_url: str, tmp_path: Path
):
    up = await asyncio.to_thread(alembic, empty_database_url, "upgrade", "0001")
    assert up.returncode == 0, up.stderr
    await run_sql(empty_database_url, _DATA_OF_0001)
    before = await catalog(empty_database_url)
    # This build also runs on the revision before its own, and leaves out what is not there yet.
    settings = DatabaseSettings(spool=tmp_path / "spool")
    database = await Database.open(settings, empty_database_url, application="test")
    await database.check_revision()
    assert database.revision == "0001"
    writer = await TurnWriter.open(database)
    one = session()
    old = turn(one, idempotency_key="k", delivered=False, echoes=("call",))
    await writer.commit(one, old)
    await migrate(empty_database_url)
    # It goes on with the old columns until it is started again.
    during = turn(one, old)
    await writer.commit(during)
    await writer.close()
    await database.check_revision()
    writer = await TurnWriter.open(database)
    new = turn(one, during, idempotency_key="k", delivered=False, response_store=False)
    await writer.commit(new)
    await writer.close()
    rows = await database.fetch(
        "SELECT id, idempotency_key, delivered, response_store, sampled_ids FROM turns ORDER BY id"
    )
    await database.close()
    ids = pack_ids(old.sampled_ids)
    assert {tuple(row) for row in rows} == {
        (old.id, None, True, True, ids),
        (during.id, None, True, True, ids),
        (new.id, "k", False, False, ids),
    }
    down = await asyncio.to_thread(alembic, empty_database_url, "downgrade", "0001")
    assert down.returncode == 0, down.stderr
    assert await catalog(empty_database_url) == before
    connection = await asyncpg.connect(empty_database_url)
    counts = await connection.fetchrow(
        "SELECT (SELECT count(*) FROM turns), (SELECT count(*) FROM api_keys)"
    )
    await connection.close()
    assert tuple(counts) == (3, 1)


def test_the_build_knows_every_revision():
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    script = ScriptDirectory.from_config(config)
    found = [revision.revision for revision in script.walk_revisions()]
    assert tuple(reversed(found)) == REVISIONS


async def test_racing_installs_migrate_once(empty_database_url: str):
    races = [
        asyncio.to_thread(alembic, empty_database_url, "upgrade", "head"),
        asyncio.to_thread(alembic, empty_database_url, "upgrade", "head"),
        migrate(empty_database_url),
    ]
    first, second, _ = await asyncio.gather(*races)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    connection = await asyncpg.connect(empty_database_url)
    rows = await connection.fetch("SELECT version_num FROM alembic_version")
    await connection.close()
    assert [row[0] for row in rows] == [REVISIONS[-1]]


async def test_ids_and_logprobs_are_stored_out_of_line(database: Database):
    rows = await database.fetch(
        "SELECT attname, attstorage, attcompression FROM pg_attribute"
        " WHERE attrelid = 'turns'::regclass"
        " AND attname IN ('prompt_ids', 'sampled_ids', 'logprobs', 'messages')"
    )
    has_lz4 = await database.fetchval(
        "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
    )
    assert {row[0]: (row[1], row[2]) for row in rows} == {
        "prompt_ids": (b"e", b"\x00"),
        "sampled_ids": (b"e", b"\x00"),
        "logprobs": (b"e", b"\x00"),
        "messages": (b"x", b"l" if has_lz4 else b"\x00"),
    }


async def opened(url: str) -> Database:
    return await Database.open(DatabaseSettings(pool_size=1), url, application="test")


async def test_an_empty_database_names_the_command_to_run(empty_database_url: str):
    database = await opened(empty_database_url)
    with pytest.raises(RevisionMismatch, match="run `nextstate migrate`"):
        await database.check_revision()
    await database.close()


async def test_own_revision_is_accepted_and_a_later_one_refused(database: Database):
    await database.check_revision()
    await database.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(RevisionMismatch, match=r"9999.*install the release"):
        await database.check_revision()


async def test_no_server_is_store_unavailable(tmp_path: Path):
    url = f"postgresql://nobody:secret-word@/db?host={tmp_path}"
    with pytest.raises(StoreUnavailable) as caught:
        await opened(url)
    assert "secret-word" not in caught.value.message
    with pytest.raises(StoreUnavailable):
        await migrate(url)


async def test_a_wrong_password_is_one_clear_line(database_url: str):
    with pytest.raises(StoreError, match="password") as caught:
        await opened(database_url.replace("://nextstate:", "://nextstate:x"))
    assert "\n" not in caught.value.message


async def test_a_database_that_does_not_exist_is_one_clear_line(database_url: str):
    wrong = database_url.replace("/test_", "/missing_")
    with pytest.raises(StoreError, match="does not exist"):
        await opened(wrong)
