"""Capture, judging and training stop where somebody pauses them, and go on where it is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import aiohttp

from gateway.config import DatabaseSettings
from gateway.records import new_id
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.pauses import PauseFollower
from gateway.store.writer import TurnWriter
from tests.admin import admin_of, call, done
from tests.factories import next_state, session, turn
from tests.fixtures_gateway import Gateway


@asynccontextmanager
async def elsewhere(database_url: str) -> AsyncIterator[PauseFollower]:
    """Another process that follows, and would look by itself only after the test."""
    database = await Database.open(DatabaseSettings(), database_url, application="elsewhere")
    follower = PauseFollower(database, look_s=600)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await database.close()


async def until(follower: PauseFollower, **counts: int) -> None:
    async with asyncio.timeout(120):
        while follower.current.counts() != {"capture": 0, "judging": 0, "training": 0, **counts}:
            await asyncio.sleep(0.02)


async def chat(gateway: Gateway) -> str | None:
    """What the answer says of its capture."""
    gateway.says("Hello")
    async with gateway.client() as client:
        served = await client.chat.completions.with_raw_response.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}]
        )
        return served.headers.get("x-nextstate-capture")


async def test_a_tenant_is_served_uncaptured_until_it_is_resumed(
    gateway: Gateway, database_url: str
) -> None:
    theirs = await admin_of(gateway, "other")
    async with elsewhere(database_url) as follower:
        await until(follower)
        assert await chat(gateway) is None
        found = await done(gateway, "POST", "capture/pause", reason="maintenance")
        again = await done(gateway, "POST", "capture/pause", reason="another")
        # What is paused stays so, with the reason that it has.
        assert again == found
        assert [(one["what"], one["reason"]) for one in found["items"]] == [
            ("capture", "maintenance")
        ]
        await until(follower, capture=1)
        assert await chat(gateway) == "off"
        # Nobody else is concerned, and nobody else is told.
        assert (await done(gateway, "GET", "pauses", key=theirs))["items"] == []
        assert (await done(gateway, "GET", "status"))["paused"] == found["items"]
        async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}/readyz") as got:
            ready = await got.json()
        assert (ready["status"], ready["paused"]["capture"]) == ("ready", 1)
        # A process that starts now knows it before its first request.
        fresh = PauseFollower(gateway.services.database)
        await fresh.refresh()
        assert fresh.current.counts()["capture"] == 1

        await done(gateway, "POST", "capture/resume")
        await done(gateway, "POST", "capture/resume")
        await until(follower)
        assert await chat(gateway) is None
    turns = await gateway.rows("SELECT count(*) FROM turns")
    assert turns == [{"count": 2}]
    actions = [one["action"] for one in (await done(gateway, "GET", "audit"))["items"]]
    assert actions == ["capture_resumed", "capture_paused"]


async def test_a_pause_is_inside_a_tenant(gateway: Gateway) -> None:
    theirs = await admin_of(gateway, "other")
    (tenant,) = await gateway.rows("SELECT id FROM tenants WHERE name = 'one'")
    asked = await call(gateway, "POST", "judging/pause", key=theirs, tenant_id=tenant["id"])
    assert asked.status == 404
    assert (await call(gateway, "POST", "serving/pause")).status == 400
    assert (await call(gateway, "POST", "training/pause", lineage="unknown")).status == 404
    # A lineage is that of all who use it: neither pauses it, and both are told who paused it.
    for key in (gateway.keys.admin, theirs):
        asked = await call(gateway, "POST", "training/pause", lineage="default", key=key)
        assert asked.status == 403
    store = KeyStore(gateway.services.database)
    own = await store.ensure_lineage("own", "tiny")
    mine = await admin_of(gateway, "other", own)
    paused = await done(gateway, "POST", "training/pause", lineage="own", key=mine)
    assert [(one["subject_id"], one["reason"]) for one in paused["items"]] == [(str(own), "")]
    assert (await done(gateway, "GET", "pauses"))["items"] == []
    resumed = await done(gateway, "POST", "training/resume", lineage="own", key=theirs)
    assert resumed["items"] == []


async def test_judges_leave_the_jobs_of_a_paused_tenant(database_url: str, tmp_path: Path) -> None:
    settings = DatabaseSettings(spool=tmp_path)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    ours, theirs = session(), session()
    turns = {one.tenant_id: turn(one) for one in (ours, theirs)}
    for one in (ours, theirs):
        said = turns[one.tenant_id]
        await writer.commit(one, said, next_state(said))
    paused: set[UUID] = {ours.tenant_id}
    claims = JudgeClaims(database, paused=lambda: paused)
    assert [job.turn_id for job in await claims.claim(new_id(), 10, 60)] == [
        turns[theirs.tenant_id].id
    ]
    assert await claims.claim(new_id(), 10, 60) == []
    paused.clear()
    assert [job.turn_id for job in await claims.claim(new_id(), 10, 60)] == [
        turns[ours.tenant_id].id
    ]
    await writer.close()
    await database.close()
