"""`nextstate engine` on a real database, with gateways that report as gateways do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.errors import NotFound, StackError
from gateway.store.database import Database
from gateway.store.drains import DrainFollower
from gateway.store.workers import Heartbeat

Call = Callable[..., str]


@pytest.fixture
def call(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("DATABASE_URL", database_url)

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, ("engine", *arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


class Reported:
    """A gateway with one engine, which follows what is drained; requests run as the test says."""

    def __init__(self, database: Database) -> None:
        self.requests = 1
        self.follower = DrainFollower(database, look_s=600, changed=self._told)
        self.beat = Heartbeat(database, "gateway", self.report)

    def _told(self) -> None:
        self.beat.changed()

    def report(self) -> dict[str, Any]:
        engine = {"name": "e1", "healthy": True, "requests": self.requests}
        return {"engines": [engine], "drains": self.follower.current.followed()}


@pytest.fixture
async def gateway(database: Database) -> AsyncIterator[Reported]:
    reported = Reported(database)
    async with reported.beat:
        task = asyncio.create_task(reported.follower.run())
        try:
            yield reported
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_drain_waits_until_nothing_is_left_and_resume_undoes_it(
    call: Call, gateway: Reported, database: Database
) -> None:
    [before] = json.loads(await asyncio.to_thread(call, "list", "--json"))
    assert (before["name"], before["draining"], before["requests"]) == ("e1", False, 1)
    found = json.loads(await asyncio.to_thread(call, "drain", "e1", "--reason", "new", "--json"))
    assert (found["draining"], found["drained"], found["requests"]) == (True, False, 1)
    assert (found["reason"], found["by"]) == ("new", "cli")
    with pytest.raises(StackError, match=r"'e1' has 1 requests left after 0\.1 s"):
        await asyncio.to_thread(call, "drain", "e1", "--wait", "0.1")
    waiting = asyncio.create_task(asyncio.to_thread(call, "drain", "e1", "--wait", "300"))
    gateway.requests = 0
    assert "e1: drained" in await waiting
    assert "drained" in await asyncio.to_thread(call, "list")
    assert "e1: serves" in await asyncio.to_thread(call, "resume", "e1")
    assert "e1: serves" in await asyncio.to_thread(call, "resume", "e1")
    entries = await database.fetch("SELECT actor, action, subject FROM audit_entries ORDER BY id")
    assert [(one["actor"], one["action"]) for one in entries] == [
        ("cli", "engine_drained"),
        ("cli", "engine_resumed"),
    ]
    assert {one["subject"]["target"] for one in entries} == {"e1"}


async def test_a_name_that_no_gateway_has_is_told(call: Call, gateway: Reported) -> None:
    for verb in ("drain", "resume"):
        with pytest.raises(NotFound, match="no gateway that runs has an engine 'e2'"):
            await asyncio.to_thread(call, verb, "e2")
    assert gateway.follower.current.engines == {}
