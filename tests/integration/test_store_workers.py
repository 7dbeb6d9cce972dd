"""Processes that are alive are listed with what they report; those that are gone are not."""

from __future__ import annotations

import asyncio
import os

from gateway.store.database import REVISIONS, Database
from gateway.store.workers import Heartbeat, Workers


async def test_a_worker_is_listed_while_it_lives(database: Database):
    workers = Workers(database)
    async with Heartbeat(database, "judge", lambda: {"done": 3}) as heartbeat:
        (found,) = await workers.alive("judge", 10)
        assert (found.id, found.kind, found.pid) == (heartbeat.id, "judge", os.getpid())
        assert (found.detail, found.revision) == ({"done": 3}, REVISIONS[-1])
        assert await workers.alive("trainer", 10) == []
    assert await workers.alive("judge", 10) == []


async def test_a_change_is_reported_at_once(database: Database):
    state = {"version": 1}
    workers = Workers(database)
    async with Heartbeat(database, "gateway", lambda: state, interval_s=3600) as heartbeat:
        state["version"] = 2
        heartbeat.changed()
        async with asyncio.timeout(120):
            while (await workers.alive("gateway", 10))[0].detail != {"version": 2}:
                await asyncio.sleep(0.01)


async def test_a_silent_worker_is_not_alive_and_is_forgotten(database: Database):
    workers = Workers(database)
    heartbeat = Heartbeat(database, "judge", interval_s=3600)
    await heartbeat.start()
    await database.execute("UPDATE workers SET heartbeat_at = now() - interval '20 seconds'")
    assert await workers.alive("judge", 10) == []
    assert len(await workers.alive("judge", 30)) == 1
    await database.execute("UPDATE workers SET heartbeat_at = now() - interval '2 days'")
    async with Heartbeat(database, "judge"):
        assert await database.fetchval("SELECT count(*) FROM workers") == 1
    await heartbeat.close()


async def test_beats_go_on(database: Database):
    async with Heartbeat(database, "judge", interval_s=0.01):
        await database.execute("UPDATE workers SET heartbeat_at = 'epoch'")
        workers = Workers(database)
        async with asyncio.timeout(120):
            while not await workers.alive("judge", 60):
                await asyncio.sleep(0.01)


async def test_a_lost_postgres_ends_neither_the_beat_nor_the_process(database: Database):
    heartbeat = Heartbeat(database, "judge", interval_s=0.01)
    await heartbeat.start()
    await database.pool.close()
    await asyncio.sleep(0.05)
    assert heartbeat._task is not None
    assert not heartbeat._task.done()
    await heartbeat.close()
