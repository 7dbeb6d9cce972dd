"""A test is given no trace of those before it."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from gateway.local.postgres import EmbeddedPostgres
from tests.databases import Databases
from tests.running import make_keys

_LEFT = "SELECT count(*) FROM tenants"


@pytest.fixture(scope="module")
def own(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[Databases]:
    """Beside those of the session: the only database in line is the one that comes back."""
    own = Databases(postgres.url, migrated_template, prefix="own", ahead=0)
    yield own
    own.close()


async def used_again(own: Databases, *changes: str) -> asyncpg.Connection:
    """A connection to what the next test is given, after one that wrote and changed something."""
    url = await own.take()
    await make_keys(url, "tiny")
    connection = await asyncpg.connect(url)
    await connection.execute("INSERT INTO events (name, detail) VALUES ('one', '{}')")
    for change in changes:
        await connection.execute(change)
    own.give_back(url)
    again = await own.take()
    assert again != url
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(url)
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
        await connection.fetch(_LEFT)
    return await asyncpg.connect(again)


@pytest.mark.parametrize(
    "change",
    [
        "SELECT 1",
        "DELETE FROM api_keys",
        "ALTER TABLE workers RENAME TO elsewhere",
        "ALTER TABLE turns ADD COLUMN more int",
        "ALTER TABLE tenants ALTER COLUMN name DROP NOT NULL",
        "DROP INDEX turns_group",
        "CREATE TABLE more ()",
        "CREATE INDEX more ON events (name)",
        "ALTER TABLE events SET (fillfactor = 50)",
        "ANALYZE",
        "UPDATE alembic_version SET version_num = '0001'",
        "CREATE FUNCTION more() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ],
)
async def test_what_was_written_or_changed_is_gone(
    own: Databases, database_url: str, change: str
) -> None:
    connection = await used_again(own, change)
    fresh = await asyncpg.connect(database_url)
    try:
        seen = [await one.fetch(_ALL) for one in (connection, fresh)]
        assert seen[0] == seen[1]
        assert await connection.fetchval(_LEFT) == 0
        number = await connection.fetchval(
            "INSERT INTO events (name, detail) VALUES ('one', '{}') RETURNING id"
        )
        assert number == 1
    finally:
        await connection.close()
        await fresh.close()


#: Names, columns, options, sizes and estimates of everything that was defined.
_ALL = """
SELECT c.relname, c.relkind, c.reloptions, pg_relation_size(c.oid) AS size,
       CASE c.relkind WHEN 'r' THEN c.reltuples END AS rows,
       array_agg(a.attname::text || a.attnotnull ORDER BY a.attnum) AS columns,
       (SELECT array_agg(version_num::text) FROM alembic_version) AS revision,
       (SELECT count(*) FROM pg_proc WHERE oid >= 16384) AS functions,
       (SELECT count(*) FROM pg_statistic WHERE starelid >= 16384) AS estimates
FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = 'public'::regnamespace
GROUP BY c.oid ORDER BY c.relname
"""
