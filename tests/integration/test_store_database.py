"""Connections: listening through a lost connection, JSON both ways, errors by kind."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from gateway.config import DatabaseSettings
from gateway.errors import StoreUnavailable
from gateway.store.database import Database


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
