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
from gateway.records import Role
from gateway.store.conversations import ConversationStore
from gateway.store.database import REVISIONS, Database, migrate
from gateway.store.keys import KeyStore
from gateway.store.schema import Base
from gateway.store.writer import TurnWriter
from tests.conftest import run_sql
from tests.factories import next_state, session, turn

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


_DATA_OF_0002 = """
INSERT INTO turns (id, tenant_id, session_id, lineage_id, depth, kind, kind_rule, kind_confidence,
    resolve_rule, dialect, model, engine, request_hash, chain_hash, message_count, messages,
    tools_hash, reply, prompt_len, shared_len, completion_len, prompt_ids, sampled_ids, logprobs,
    spans, sampling, finish_reason, trainable, untrainable_reason, cached_tokens, queued_ms,
    total_ms, created_at, idempotency_key)
SELECT '00000000-0000-0000-0000-000000000005', id, id, id, 0, 'main', '', 1, '', '', '', '',
    sha256('r'), sha256('c'), 1, '[]', sha256('t'), '{}', 1, 0, 0, '\\x01000000', '', '', '[]',
    '{}', 'stop', false, 'aborted', 0, 0, 0, now(), 'key'
FROM tenants;
INSERT INTO next_states (turn_id, tenant_id, following_id, messages, role, arrived_at)
SELECT id, tenant_id, id, '[]', 'user', now() FROM turns;
INSERT INTO feedback (id, tenant_id, turn_id, score, source)
SELECT id, tenant_id, id, 1, 'api' FROM turns;
"""


@pytest.mark.parametrize(
    ("revision", "data", "turns"),
    [("0001", _DATA_OF_0001, 0), ("0002", _DATA_OF_0001 + _DATA_OF_0002, 1)],
)
async def test_data_of_every_earlier_revision_survives_up_and_down(
    empty_database_url: str, revision: str, data: str, turns: int
):
    up = await asyncio.to_thread(alembic, empty_database_url, "upgrade", revision)
    assert up.returncode == 0, up.stderr
    await run_sql(empty_database_url, data)
    before = await catalog(empty_database_url)
    rows = await counts(empty_database_url)
    await migrate(empty_database_url)
    assert await counts(empty_database_url) == rows == (turns, turns, turns, 1)
    down = await asyncio.to_thread(alembic, empty_database_url, "downgrade", revision)
    assert down.returncode == 0, down.stderr
    assert await catalog(empty_database_url) == before
    assert await counts(empty_database_url) == rows


async def test_a_turn_whose_ids_are_gone_goes_down_as_one_without(empty_database_url: str):
    await migrate(empty_database_url)
    await run_sql(empty_database_url, _DATA_OF_0001 + _DATA_OF_0002)
    await run_sql(
        empty_database_url,
        "UPDATE turns SET tokens_cleared = true, prompt_ids = '', shared_len = 0, prompt_len = 9,"
        " completion_len = 7",
    )
    down = await asyncio.to_thread(alembic, empty_database_url, "downgrade", "0002")
    assert down.returncode == 0, down.stderr
    connection = await asyncpg.connect(empty_database_url)
    lengths = await connection.fetchrow("SELECT prompt_len, completion_len FROM turns")
    await connection.close()
    assert tuple(lengths) == (0, 0)


async def counts(url: str) -> tuple[int, ...]:
    tables = ("turns", "next_states", "feedback", "api_keys")
    connection = await asyncpg.connect(url)
    try:
        return tuple([await connection.fetchval(f"SELECT count(*) FROM {t}") for t in tables])
    finally:
        await connection.close()


async def test_this_build_runs_on_the_revision_before_its_own(
    empty_database_url: str, tmp_path: Path
):
    """It leaves out what is not there yet."""
    up = await asyncio.to_thread(alembic, empty_database_url, "upgrade", REVISIONS[-2])
    assert up.returncode == 0, up.stderr
    settings = DatabaseSettings(spool=tmp_path / "spool")
    database = await Database.open(settings, empty_database_url, application="test")
    await database.check_revision()
    assert database.revision == REVISIONS[-2]
    # Settings of tenants, one of which leaves all of its requests out, came later.
    keys = KeyStore(database)
    lineage = await keys.ensure_lineage("default", "tiny")
    tenant = await keys.ensure_tenant("one")
    _, secret = await keys.create(tenant, "agent", Role.AGENT, lineage)
    assert (await keys.principal(secret)).capture
    writer = await TurnWriter.open(database)
    one = session()
    new = {"group_id": "g", "reasoning_tokens": 1, "redacted": True}
    new["response_fields"] = {"user": "u"}
    old = turn(one, **new)
    await writer.commit(one, old)
    # What a client stored before can be read and forgotten.
    conversations = ConversationStore(database)
    found = await conversations.find(one.tenant_id, old.id, old.dialect)
    assert (found.reply, found.response_fields) == (old.reply, None)
    assert await conversations.forget(one.tenant_id, old.id, old.dialect)
    await migrate(empty_database_url)
    # It goes on with the old columns until it is started again.
    during = turn(one, old, **new)
    await writer.commit(during, next_state(old, how="rolled_back"))
    await writer.close()
    await database.check_revision()
    writer = await TurnWriter.open(database)
    after = turn(one, during, **new)
    await writer.commit(after, next_state(during, how="rolled_back"))
    await writer.close()
    rows = await database.fetch(
        "SELECT t.id, group_id, reasoning_tokens, redacted, response_fields::text, how"
        " FROM turns t LEFT JOIN next_states n ON n.turn_id = t.id"
    )
    await database.close()
    assert {tuple(row) for row in rows} == {
        (old.id, None, 0, False, None, "continued"),
        (during.id, None, 0, False, None, "rolled_back"),
        (after.id, "g", 1, True, '{"user": "u"}', None),
    }


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
        " AND attname IN ('prompt_ids', 'sampled_ids', 'logprobs', 'kept', 'messages')"
    )
    has_lz4 = await database.fetchval(
        "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
    )
    assert {row[0]: (row[1], row[2]) for row in rows} == {
        "prompt_ids": (b"e", b"\x00"),
        "sampled_ids": (b"e", b"\x00"),
        "logprobs": (b"e", b"\x00"),
        "kept": (b"e", b"\x00"),
        "messages": (b"x", b"l" if has_lz4 else b"\x00"),
    }


async def test_large_tables_are_vacuumed_after_a_small_share_of_changes(database: Database):
    rows = await database.fetch(
        "SELECT relname, reloptions FROM pg_class WHERE relkind = 'r' AND reloptions IS NOT NULL"
        " AND relnamespace = 'public'::regnamespace ORDER BY relname"
    )
    assert [row["relname"] for row in rows] == ["judgements", "next_states", "turns"]
    for row in rows:
        assert {*row["reloptions"]} == {
            "autovacuum_vacuum_scale_factor=0.02",
            "autovacuum_vacuum_insert_scale_factor=0.02",
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
