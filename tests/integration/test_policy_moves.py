"""Operators move a lineage by terminal and API; the gateway follows, with no trainer anywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.errors import NextstateError
from gateway.records import Role
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from tests.fixtures_gateway import Gateway
from tests.planted import lead, plant


@dataclass
class World:
    """Versions 1 and 2 of the gateway's lineage were live one after the other."""

    gateway: Gateway

    async def served(self) -> int:
        """The version that a new session is served by."""
        async with self.gateway.client() as client:
            await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Who?"}], max_tokens=4
            )
        name = self.gateway.engine.requests[-1].get("lora_path")
        return int(name.rpartition("-v")[2]) if name else 0

    async def follows(self, version: int) -> None:
        async with asyncio.timeout(120):
            while await self.served() != version:
                await asyncio.sleep(0.02)

    async def post(
        self, path: str, key: str | None = None, **query: object
    ) -> tuple[int, dict[str, Any]]:
        headers = {"authorization": f"Bearer {key or self.gateway.keys.admin}"}
        given = {name: str(value) for name, value in query.items()}
        url = f"{self.gateway.url}/admin/v1/policies/{path}"
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(url, params=given) as answer,
        ):
            body = await answer.json(content_type=None)
            if answer.status != 200:
                assert answer.content_type == "application/problem+json"
            return answer.status, body

    async def states(self) -> dict[int, str]:
        rows = await self.gateway.rows(
            "SELECT version, state FROM policies WHERE lineage_id = $1",
            self.gateway.keys.lineage_id,
        )
        return {row["version"]: row["state"] for row in rows}


@pytest.fixture
async def world(gateway: Gateway, tmp_path: Path) -> World:
    database, lineage = gateway.services.database, gateway.keys.lineage_id
    # The lineage is that of tenant `one` alone: what several use is moved by operators.
    (other,) = await gateway.rows(
        "SELECT k.id FROM api_keys k JOIN tenants t ON t.id = k.tenant_id WHERE t.name = 'other'"
    )
    await gateway.services.keys.revoke(other["id"])
    leadership = await lead(database, lineage)
    for _ in range(2):
        version = await plant(database, lineage, leadership.epoch, tmp_path)
        await PolicyStore(database).promote(lineage, leadership.epoch, version)
    await leadership.release()
    world = World(gateway)
    await world.follows(2)
    return world


@pytest.fixture
def call(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("DATABASE_URL", database_url)

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["policy", *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


async def test_a_rollback_by_the_api_is_a_swap_back(world: World) -> None:
    status, body = await world.post("2/rollback", reason="rude")
    assert (status, body["live_version"], body["undone"], body["changed"]) == (200, 1, [2], True)
    await world.follows(1)
    assert await world.states() == {0: "retired", 1: "live", 2: "rolled_back"}
    again = await world.post("2/rollback")
    assert (again[0], again[1]["live_version"], again[1]["changed"]) == (200, 1, False)
    [event] = await world.gateway.rows("SELECT detail FROM events WHERE name = 'rolled_back'")
    assert (event["detail"]["version"], event["detail"]["reason"]) == (2, "rude")

    # And forward again, once it turned out to be right.
    status, body = await world.post("2/promote")
    assert (status, body["live_version"], body["changed"]) == (200, 2, True)
    await world.follows(2)
    assert (await world.post("2/promote"))[1]["changed"] is False
    # All of it, to the base.
    status, body = await world.post("1/rollback")
    assert (status, body["live_version"], body["undone"]) == (200, 0, [2, 1])
    await world.follows(0)


async def test_one_session_may_be_served_by_several_versions_and_says_so(world: World) -> None:
    told: list[Any] = [{"role": "user", "content": "What is the capital?"}]
    async with world.gateway.client() as client:
        for version in (2, 1):
            reply = await client.chat.completions.create(
                model="tiny", messages=told, max_tokens=6, extra_headers={"x-session-id": "one"}
            )
            told += [
                {"role": "assistant", "content": reply.choices[0].message.content},
                {"role": "user", "content": "And of Norway?"},
            ]
            if version == 2:
                assert (await world.post("2/rollback"))[0] == 200
                await world.follows(1)
    rows = await world.gateway.rows(
        "SELECT t.spans, t.completion_len, t.version_min, t.version_max FROM turns t"
        " JOIN sessions s ON s.id = t.session_id WHERE s.external_id = 'one' ORDER BY t.id"
    )
    assert [row["spans"] for row in rows] == [
        [[2, 0, rows[0]["completion_len"]]],
        [[1, 0, rows[1]["completion_len"]]],
    ]
    assert [(row["version_min"], row["version_max"]) for row in rows] == [(2, 2), (1, 1)]


async def test_a_canary_serves_its_share_and_ends_either_way(world: World, tmp_path: Path) -> None:
    database, lineage = world.gateway.services.database, world.gateway.keys.lineage_id
    policies, pool = PolicyStore(database), world.gateway.services.pool
    leadership = await lead(database, lineage)
    third = await plant(database, lineage, leadership.epoch, tmp_path)
    assert (await world.post("3/promote"))[0] == 409
    await policies.try_out(lineage, leadership.epoch, third, 0.5, {})

    def tried() -> set[int]:
        return {pool.choose(lineage, f"s{number}")[1].version for number in range(50)}

    async with asyncio.timeout(120):
        while tried() != {2, 3}:
            await asyncio.sleep(0.02)
    status, body = await world.post("3/rollback")
    assert (status, body["live_version"], body["undone"]) == (200, 2, [3])
    async with asyncio.timeout(120):
        while tried() != {2}:
            await asyncio.sleep(0.02)
    await leadership.release()

    leadership = await lead(database, lineage)
    fourth = await plant(database, lineage, leadership.epoch, tmp_path)
    await policies.try_out(lineage, leadership.epoch, fourth, 0.5, {"state": "open", "anchor": 2})
    await leadership.release()
    assert (await world.post("4/promote"))[1]["live_version"] == 4
    # Somebody has decided: no gate asks about it any more.
    assert (await policies.standing(lineage)).gate["state"] == "by_hand"
    async with asyncio.timeout(120):
        while tried() != {4}:
            await asyncio.sleep(0.02)
    assert await world.states() == {
        0: "retired", 1: "retired", 2: "retired", 3: "rolled_back", 4: "live",
    }  # fmt: skip


async def test_a_pin_holds_until_it_is_taken_away(world: World) -> None:
    assert (await world.post("1/pin"))[0] == 409
    status, body = await world.post("2/pin")
    assert (status, body["pinned_version"]) == (200, 2)
    status, body = await world.post("2/rollback")
    assert (status, body["code"]) == (409, "pinned")
    assert (await world.post("1/unpin"))[0] == 409
    assert (await world.post("2/unpin"))[1]["pinned_version"] is None
    assert (await world.post("2/unpin"))[1]["changed"] is False
    assert (await world.post("2/rollback"))[0] == 200


async def test_what_cannot_be_done_is_refused_with_the_reason(world: World) -> None:
    keys, database = world.gateway.keys, world.gateway.services.database
    for path, status in [
        ("9/rollback", 404),
        ("9/promote", 404),
        ("9/pin", 404),
        ("0/rollback", 409),
        ("1/promote", 409),
        ("x/promote", 400),
        ("-1/promote", 400),
        (f"{2**63}/promote", 400),
    ]:
        assert (await world.post(path))[0] == status, path
    assert (await world.post("2/rollback", to=2))[0] == 409
    assert (await world.post("2/rollback", lineage="none"))[0] == 404
    assert (await world.post("2/rollback", lineage="a\x00b"))[0] == 400
    assert (await world.post("2/rollback", key=keys.agent))[0] == 403
    # Another tenant's lineage is not there.
    store = KeyStore(database)
    theirs = await store.ensure_lineage("theirs", "tiny")
    tenant = await store.ensure_tenant("elsewhere")
    _, admin = await store.create(tenant, "admin", Role.ADMIN, theirs)
    assert (await world.post("2/rollback", lineage="theirs"))[0] == 404
    assert (await world.post("2/rollback", key=admin))[0] == 404
    assert (await world.post("0/pin", key=admin, lineage="theirs"))[0] == 200
    # A gateway may run on the revision before its own.
    database.revision = "0002"
    assert (await world.post("2/rollback"))[0] == 409
    assert set(await PolicyStore(database).served()) == {keys.lineage_id, theirs}
    database.revision = "0003"
    # Files that are gone cannot be gone back to; the base model always can.
    await PolicyStore(database).forget_files(keys.lineage_id, [1])
    assert (await world.post("2/rollback", to=1))[0] == 409
    assert (await world.post("2/rollback"))[1]["live_version"] == 0
    assert await world.served() in (0, 2)


async def test_the_same_on_the_command_line(world: World, call: Callable[..., str]) -> None:
    async def run(*arguments: str) -> str:
        return await asyncio.to_thread(call, *arguments)

    listed = json.loads(await run("list", "--json"))
    assert (listed["live_version"], listed["pinned_version"]) == (2, None)
    assert [(row["version"], row["state"]) for row in listed["versions"]] == [
        (2, "live"), (1, "retired"), (0, "retired"),
    ]  # fmt: skip
    moved = json.loads(await run("rollback", "--reason", "rude", "--json"))
    assert (moved["live_version"], moved["undone"], moved["changed"]) == (1, [2], True)
    await world.follows(1)
    assert "rolled_back" in (table := await run("list"))
    assert "rude" in table
    assert json.loads(await run("promote", "2", "--json"))["live_version"] == 2
    assert json.loads(await run("rollback", "--to", "0", "--json"))["undone"] == [2, 1]
    await world.follows(0)
    assert json.loads(await run("pin", "0", "--json"))["pinned_version"] == 0
    with pytest.raises(NextstateError, match="unpin it first"):
        await run("promote", "1")
    assert json.loads(await run("unpin", "--json"))["pinned_version"] is None
    with pytest.raises(NextstateError, match="no lineage 'none'"):
        await run("list", "--lineage", "none")


async def test_how_a_gate_stands_is_told_in_both_places(
    world: World, call: Callable[..., str]
) -> None:
    lineage = world.gateway.keys.lineage_id
    gate = {"mode": "watch", "state": "open", "anchor": 1, "since": 1000.0, "judged": 7}
    await world.gateway.services.database.execute(
        "UPDATE policies SET gate = $2 WHERE lineage_id = $1 AND version = 2", lineage, gate
    )
    headers = {"authorization": f"Bearer {world.gateway.keys.admin}"}
    url = f"{world.gateway.url}/admin/v1/policies"
    async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as answer:
        items = (await answer.json())["items"]
    assert {one["version"]: one["gate"] for one in items} == {2: gate, 1: None, 0: None}
    told = json.loads(await asyncio.to_thread(call, "list", "--json"))["versions"]
    assert {one["version"]: one["gate"] for one in told} == {2: gate, 1: None, 0: None}
    shown = await asyncio.to_thread(call, "list")
    assert "gate" in shown.splitlines()[1]
    [row] = [line.split() for line in shown.splitlines() if line.startswith("2 ")]
    assert row[-2:] == ["open", "7"]
