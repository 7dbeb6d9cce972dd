"""Connections: listening through a lost connection, JSON both ways, errors by kind."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from gateway.config import DatabaseSettings
from gateway.errors import StoreUnavailable
from gateway.store.database import Database
from gateway.store.direct import DirectConnection


async def test_json_goes_both_ways(database: Database):
    value = {"text": "né \u2028 日本", "list": [1, 2.5, None, True]}
    assert await database.fetchval("SELECT $1::jsonb", value) == value
    assert await database.fetchval("SELECT $1::jsonb ->> 'text'", value) == value["text"]


async def test_a_statement_that_takes_too_long_is_unavailable(database_url: str):
    settings = DatabaseSettings(command_timeout_s=0.2)
    database = await Database.open(settings, database_url, application="test")
    with pytest.raises(StoreUnavailable):
        await database.execute("SELECT pg_sleep(60)")
    assert await database.fetchval("SELECT 1") == 1
    await database.close()


async def test_a_listener_hears_and_outlives_its_connection(database: Database):
    heard: asyncio.Queue[str] = asyncio.Queue()
    await database.listen("news", heard.put_nowait)
    await database.execute("SELECT pg_notify('news', 'first')")
    assert await asyncio.wait_for(heard.get(), 120) == "first"
    killed = await database.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query ILIKE 'listen%'"
    )
    assert killed == 1
    # Something may have been missed: the callback is called once on its own.
    assert await asyncio.wait_for(heard.get(), 120) == ""
    await database.execute("SELECT pg_notify('news', 'second')")
    assert await asyncio.wait_for(heard.get(), 120) == "second"


async def test_a_killed_connection_is_replaced(database: Database):
    with pytest.raises(StoreUnavailable):
        await database.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert await database.fetchval("SELECT 1") == 1


async def test_a_look_up_that_is_cut_off_is_nobody_elses(database: Database):
    with pytest.raises(StoreUnavailable):
        await database.look_up("SELECT pg_sleep(30)", timeout_s=0.2)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await database.look_up("SELECT 1 / $1::int", 0, timeout_s=10)
    found = await asyncio.gather(
        *(database.look_up("SELECT $1::int AS number", n, timeout_s=10) for n in range(20))
    )
    assert [rows[0]["number"] for rows in found] == list(range(20))


async def test_who_gives_up_waiting_for_a_look_up_takes_nobodys_place(database: Database):
    async def sleeping(seconds: float) -> None:
        await database.look_up("SELECT pg_sleep($1)", seconds, timeout_s=60)

    busy = [asyncio.create_task(sleeping(seconds)) for seconds in (1, 1, 1)]

    async def cut_off() -> None:
        await sleeping(0.5)
        # It has been given this place, and does not know yet.
        handed.cancel()

    busy.append(asyncio.create_task(cut_off()))
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        await database.look_up("SELECT 1", timeout_s=0.05)
    handed = asyncio.create_task(sleeping(60))
    patient = asyncio.create_task(database.look_up("SELECT 1 AS one", timeout_s=60))
    assert (await patient)[0]["one"] == 1
    await asyncio.gather(*busy)
    assert handed.cancelled()
    # As many look at once as before.
    busy = [asyncio.create_task(sleeping(0.5)) for _ in range(5)]
    sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = $1"
    found = 0
    while not all(task.done() for task in busy):
        found = max(found, await database.fetchval(sql, "SELECT pg_sleep($1)"))
    assert found == 4


async def test_a_look_up_outlives_a_change_of_what_it_reads(database: Database):
    await database.execute("CREATE TABLE told (word text)")
    await database.execute("INSERT INTO told VALUES ('7')")
    sql = "SELECT word FROM told"
    assert (await database.look_up(sql, timeout_s=10))[0]["word"] == "7"
    await database.execute("ALTER TABLE told ALTER word TYPE int USING word::int")
    assert (await database.look_up(sql, timeout_s=10))[0]["word"] == 7


async def test_what_is_asked_again_is_asked_past_asyncpgs_layers(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    connection = await database.connect()
    sql = "SELECT $1::int AS number"
    assert (await connection.ask(sql, 1))[0]["number"] == 1
    with monkeypatch.context() as patch:
        # Of a release that is not known to be called so, this says that it has to be looked at.
        patch.setattr(DirectConnection, "fetch", None)
        assert (await connection.ask(sql, 2))[0]["number"] == 2
    with pytest.raises(TimeoutError):
        await connection.ask("SELECT pg_sleep($1)", 60, timeout_s=0.1)
    connection.terminate()
    with pytest.raises(asyncpg.InterfaceError):
        await connection.ask(sql, 3)
