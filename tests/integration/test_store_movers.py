"""Turns at replacing an engine's weights: one process at a time, and none is waited for in vain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config import DatabaseSettings
from gateway.store.database import Database
from gateway.store.movers import EngineMovers, _key, _taken


@pytest.fixture
async def database(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    settings = DatabaseSettings(spool=tmp_path / "spool")
    database = await Database.open(settings, database_url, application="test")
    yield database
    await database.close()


async def test_one_has_the_turn_and_others_see_it(database: Database) -> None:
    movers, others = EngineMovers(database), EngineMovers(database)
    async with movers.turn("one") as mine, others.turn("one") as theirs, others.turn("two") as two:
        assert (mine, theirs, two) == (True, False, True)
        assert await others.under_way(["one", "two", "three"]) == {"one", "two"}
    assert await others.under_way(["one", "two", "three"]) == frozenset()


async def test_a_turn_is_waited_for_and_its_begin_and_end_are_told(database: Database) -> None:
    movers, heard = EngineMovers(database), asyncio.Queue[str]()
    await database.listen("nextstate_policy", heard.put_nowait)
    first = movers.turn("one")
    await first.__aenter__()
    assert await heard.get() == ""
    waits = asyncio.create_task(_takes(movers))
    await asyncio.sleep(0.2)
    assert not waits.done()
    await first.__aexit__(None, None, None)
    assert await waits


async def _takes(movers: EngineMovers) -> bool:
    async with movers.turn("one", 30) as mine:
        return mine


async def test_a_process_that_dies_gives_way(database: Database) -> None:
    movers, theirs = EngineMovers(database), await database.connect()
    assert await _taken(theirs, _key("one"), 0)
    assert await movers.under_way(["one"]) == {"one"}
    theirs.terminate()
    async with movers.turn("one", 10) as mine:
        assert mine


async def test_a_turn_whose_connection_is_lost_is_taken_again(database: Database) -> None:
    movers, others = EngineMovers(database), EngineMovers(database)
    holders = (
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    async with movers.turn("one") as mine:
        assert mine
        for _ in range(2):
            before = await database.fetchval(holders)
            await database.execute("SELECT pg_terminate_backend($1)", before)
            async with asyncio.timeout(120):
                while await database.fetchval(holders) in (before, None):
                    await asyncio.sleep(0.02)
        async with others.turn("one") as theirs:
            assert not theirs
        assert await others.under_way(["one"]) == {"one"}
    async with others.turn("one") as free:
        assert free


async def test_without_postgres_nobody_moves_anything_so_the_turn_is_free(
    database: Database,
) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    away = Database(database.pool, nowhere, database.settings, "test")
    async with EngineMovers(away).turn("one") as mine:
        assert mine
