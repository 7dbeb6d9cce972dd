"""Erasure through the admin API and the command line, of what agents have said to a gateway."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.records import new_id
from gateway.store.schema import Base
from tests.fixtures_gateway import Gateway

ASKED = "The quick brown fox?"


async def ask(gateway: Gateway, user: str, messages: list[dict[str, Any]]) -> str:
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    body = {"model": "tiny", "messages": messages, "user": user}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return answer.headers["x-nextstate-session-id"]


async def admin(
    gateway: Gateway, method: str, path: str, body: object = None, key: str | None = None
) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key or gateway.keys.admin}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.request(method, f"{gateway.url}/admin/v1{path}", json=body) as answer,
    ):
        return answer.status, json.loads(await answer.text())


async def talk(gateway: Gateway, user: str, secret: str) -> str:
    """Two turns of a user; the session."""
    told = [{"role": "user", "content": f"I am {secret}. {ASKED}"}]
    gateway.says("dog")
    session_id = await ask(gateway, user, told)
    told += [{"role": "assistant", "content": "dog"}, {"role": "user", "content": "lazy"}]
    gateway.says("fox")
    assert await ask(gateway, user, told) == session_id
    return session_id


async def trained(gateway: Gateway) -> None:
    """A step has trained version 1 on every turn that there is."""
    lineage, step = gateway.keys.lineage_id, new_id()
    database = gateway.services.database
    await database.execute(
        "INSERT INTO train_steps (id, lineage_id, epoch, from_version, to_version, metrics,"
        " started_at, ended_at) VALUES ($1, $2, 1, 0, 1, '{}', now(), now())",
        step,
        lineage,
    )
    await database.execute(
        "INSERT INTO samples (id, turn_id, session_id, lineage_id, method, score, version_min,"
        " arrived_at, state, step_id) SELECT gen_random_uuid(), id, session_id, lineage_id,"
        " 'binary_rl', 1, 0, now(), 'trained', $1 FROM turns",
        step,
    )


async def found(gateway: Gateway, *words: str) -> list[str]:
    """Tables in which any of these words stands."""
    tables = []
    for table in Base.metadata.tables:
        rows = await gateway.rows(
            f"SELECT EXISTS (SELECT FROM {table} r WHERE r::text ~ $1) AS found", "|".join(words)
        )
        if rows[0]["found"]:
            tables.append(table)
    return sorted(tables)


async def test_a_user_is_erased_end_to_end(gateway: Gateway) -> None:
    session_id = await talk(gateway, "ann", "Ann Other")
    await talk(gateway, "bob", "Bob Else")
    await trained(gateway)
    assert "turns" in await found(gateway, "Ann Other", session_id)
    status, erased = await admin(gateway, "POST", "/erasures", {"end_user": "ann"})
    assert status == 200, erased
    assert (erased["sessions"], erased["rows"]["turns"], erased["rows"]["samples"]) == (1, 2, 2)
    assert [(one["lineage"], one["version"]) for one in erased["versions"]] == [("default", 1)]
    assert await found(gateway, "Ann Other", '"ann"') == []
    # The entry names the session that is gone, and what it was trained into.
    assert await found(gateway, session_id) == ["audit_entries"]
    (entry,) = await gateway.rows("SELECT * FROM audit_entries WHERE action = 'erasure'")
    assert entry["id"].hex == erased["entry_id"].replace("-", "")
    assert entry["subject"]["versions"] == erased["versions"]
    # The other user's is all there.
    assert await gateway.rows("SELECT count(*) AS n FROM turns") == [{"n": 2}]
    # Nor does the gateway remember: the same words begin a new session.
    async with asyncio.timeout(120):
        while len(gateway.services.turns._recent):
            await asyncio.sleep(0.01)
    told = [
        {"role": "user", "content": f"I am Ann Other. {ASKED}"},
        {"role": "assistant", "content": "dog"},
        {"role": "user", "content": "lazy"},
    ]
    gateway.says("fox")
    assert await ask(gateway, "ann", told) != session_id


async def test_a_session_is_erased_by_its_own_tenant_alone(gateway: Gateway) -> None:
    session_id = await talk(gateway, "ann", "Ann Other")
    agent = gateway.keys.agent
    assert (await admin(gateway, "DELETE", f"/sessions/{session_id}", key=agent))[0] == 403
    status, problem = await admin(gateway, "DELETE", f"/sessions/{new_id()}")
    assert (status, problem["title"]) == (404, "Not Found")
    assert "turns" in await found(gateway, session_id)
    for rows in (2, None):
        status, erased = await admin(gateway, "DELETE", f"/sessions/{session_id}")
        assert (status, erased["rows"].get("turns")) == (200, rows)
    assert await found(gateway, session_id, "Ann Other") == ["audit_entries"]


@pytest.mark.parametrize("body", [{}, {"end_user": ""}, {"end_user": "a", "session_id": "b"}])
async def test_an_erasure_of_nobody_is_refused(gateway: Gateway, body: dict[str, str]) -> None:
    assert (await admin(gateway, "POST", "/erasures", body))[0] == 400
    assert await gateway.rows("SELECT FROM audit_entries") == []


async def test_the_command_line_erases_and_clears(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await talk(gateway, "ann", "Ann Other")
    await talk(gateway, "bob", "Bob Else")
    await gateway.services.database.execute(
        """UPDATE tenants SET settings = '{"retention": {"text_days": 1}}' WHERE name = 'one'"""
    )
    url = gateway.services.settings.database.url
    assert url is not None
    monkeypatch.setenv("DATABASE_URL", url.get_secret_value())

    async def call(*words: str) -> Any:
        result = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    erased = await call("erase", "session", first, "--tenant", "one")
    assert erased["rows"]["turns"] == 2
    erased = await call("erase", "user", "bob", "--tenant", "one")
    assert (erased["sessions"], erased["rows"]["turns"]) == (1, 2)
    assert await found(gateway, "Ann Other", "Bob Else") == []
    actors = await gateway.rows("SELECT DISTINCT actor FROM audit_entries")
    assert actors == [{"actor": "cli"}]
    planned = await call("retention", "plan")
    assert [(one["tenant"], one["part"], one["due"]) for one in planned] == [("one", "text", 0)]
    assert (await call("retention", "run"))["turns"] == {}
    nobody = await asyncio.to_thread(CliRunner().invoke, app, ["erase", "user", "x"])
    assert "there is no tenant 'default'" in str(nobody.exception)
