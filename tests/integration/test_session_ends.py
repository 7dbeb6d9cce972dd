"""How sessions end, and what the last turn then says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import aiohttp
import pytest
from yarl import URL

from gateway.config import Settings, load
from gateway.store.settings import SettingStore
from judge.config import JudgeSettings
from judge.worker import run
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway
from tests.running import gateway_values, make_keys, running_gateway

ASK = {"role": "user", "content": "The quick brown fox?"}
THEN = {"role": "user", "content": "lazy"}
NO_SESSION = (
    404,
    {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "There is no such session.",
        "code": "not_found",
    },
)


async def chat(gateway: Gateway, *messages: dict[str, Any], **headers: str) -> str:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.client() as client:
        reply = await client.chat.completions.create(
            model="tiny",
            messages=list(messages),  # type: ignore[arg-type]
            extra_headers=given,
        )
    return reply.choices[0].message.content or ""


async def said_by_header(gateway: Gateway, messages: list[dict[str, Any]]) -> None:
    await chat(gateway, *messages, x_session_done="true")


async def ended_by_route(gateway: Gateway, messages: list[dict[str, Any]]) -> None:
    await chat(gateway, *messages)
    [session] = await gateway.rows("SELECT id FROM sessions")
    assert await end(gateway, session["id"], gateway.keys.stranger) == NO_SESSION
    assert await end(gateway, session["id"]) == (200, {"id": str(session["id"]), "ended": True})
    # Once more changes nothing.
    assert await end(gateway, session["id"]) == (200, {"id": str(session["id"]), "ended": False})


async def end(gateway: Gateway, name: object, key: str | None = None) -> tuple[int, dict[str, Any]]:
    headers = {"authorization": f"Bearer {key or gateway.keys.agent}"}
    url = URL(f"{gateway.url}/v1/sessions/{quote(str(name), safe='')}/end", encoded=True)
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url) as answer:
        return answer.status, json.loads(await answer.text())


@asynccontextmanager
async def judging(url: str, timeout_s: float) -> AsyncIterator[None]:
    settings = load(
        JudgeSettings,
        database={"url": url},
        session_awareness={"session_timeout_s": timeout_s},
        judge={"poll_s": 0.1, "idle_check_s": 0.05},
    )
    stop = asyncio.Event()
    working = asyncio.create_task(run(settings, stop))
    try:
        yield
    finally:
        stop.set()
        await working


@pytest.mark.parametrize(
    ("ends", "reason"), [(said_by_header, "client_done"), (ended_by_route, "ended_by_api")]
)
async def test_a_session_that_is_ended_says_so_of_its_last_turn(
    gateway: Gateway,
    ends: Callable[[Gateway, list[dict[str, Any]]], Awaitable[None]],
    reason: str,
) -> None:
    gateway.says("dog")
    reply = await chat(gateway, ASK)
    gateway.says("fox")
    await ends(gateway, [ASK, {"role": "assistant", "content": reply}, THEN])
    await _ended(gateway, reason)
    # Whoever goes on all the same opens it again, and that turn was not the last.
    gateway.says("over")
    history = [ASK, {"role": "assistant", "content": reply}, THEN]
    await chat(gateway, *history, {"role": "assistant", "content": "fox"}, ASK)
    [session] = await gateway.rows("SELECT status, end_reason FROM sessions")
    assert (session["status"], session["end_reason"]) == ("open", None)
    _, second, third = await gateway.rows("SELECT id, session_id FROM turns ORDER BY id")
    followed = await gateway.rows("SELECT following_id FROM next_states WHERE turn_id = $1",
                                  second["id"])  # fmt: skip
    assert followed == [{"following_id": third["id"]}]


@pytest.mark.parametrize(
    "name", ["chat-7", "chat/7: the fox?", "7f3c" * 50, "日本語の会話", "é" * 100]
)
async def test_a_session_is_ended_by_its_clients_own_name(gateway: Gateway, name: str) -> None:
    gateway.says("dog")
    headers = {"authorization": f"Bearer {gateway.keys.agent}", "x-session-id": name}
    body = {"model": "tiny", "messages": [ASK]}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status == 200
    assert await end(gateway, name, gateway.keys.stranger) == NO_SESSION
    [session] = await gateway.rows("SELECT id, external_id, status FROM sessions")
    assert (session["external_id"], session["status"]) == (name, "open")
    assert await end(gateway, name) == (200, {"id": str(session["id"]), "ended": True})
    [session] = await gateway.rows("SELECT status, end_reason FROM sessions")
    assert (session["status"], session["end_reason"]) == ("closed", "ended_by_api")


async def test_requests_that_open_a_session_at_once_end_it(gateway: Gateway) -> None:
    gateway.engine.chunk_delay_s = 0.05
    for words in ("fox", "dog " * 10):
        gateway.says(words)
    asked = ({"role": "user", "content": word} for word in ("quick", "brown"))
    await asyncio.gather(
        *(chat(gateway, ask, x_session_id="both", x_session_done="true") for ask in asked)
    )
    [session] = await gateway.rows("SELECT id, status, end_reason FROM sessions")
    assert (session["status"], session["end_reason"]) == ("closed", "client_done")
    turns = await gateway.rows("SELECT session_id FROM turns")
    assert [turn["session_id"] for turn in turns] == [session["id"]] * 2
    verdicts = await gateway.rows("SELECT reason FROM verdicts")
    assert [verdict["reason"] for verdict in verdicts] == ["no_next_state"] * 2


@pytest.mark.parametrize("name", ["nobody", UUID(int=7), "n" * 5_000, "\0", "\N{FOX FACE}"])
async def test_a_session_that_is_none_cannot_be_ended(gateway: Gateway, name: object) -> None:
    assert await end(gateway, name) == NO_SESSION


async def test_a_session_that_is_idle_is_closed(gateway: Gateway, database_url: str) -> None:
    gateway.says("dog")
    reply = await chat(gateway, ASK)
    gateway.says("fox")
    await chat(gateway, ASK, {"role": "assistant", "content": reply}, THEN)
    async with judging(database_url, 0.5):
        await gateway.until("SELECT id FROM sessions WHERE status = 'closed'")
    await _ended(gateway, "idle")


async def test_without_a_judge_a_gateway_closes_what_is_idle(
    database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    async with FakeSglang(model_path=tiny_model) as engine:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, tiny_model, engine.url, tmp_path)
        values["gateway"] = values["gateway"].model_copy(update={"idle_check_s": 0.05})
        async with running_gateway(Settings(**values), keys) as running:
            gateway = Gateway(url=running.url, keys=keys, services=running.services, engine=engine)
            gateway.says("dog")
            reply = await chat(gateway, ASK)
            gateway.says("fox")
            await chat(gateway, ASK, {"role": "assistant", "content": reply}, THEN)
            [session] = await gateway.rows("SELECT status FROM sessions")
            assert session["status"] == "open"
            changed = SettingStore(gateway.services.database)
            await changed.put("session_awareness", {"session_timeout_s": 0.1})
            await gateway.until("SELECT id FROM sessions WHERE status = 'closed'")
            await _ended(gateway, "idle")


async def test_a_session_that_is_not_idle_so_long_stays_open(
    gateway: Gateway, database_url: str
) -> None:
    gateway.says("dog")
    await chat(gateway, ASK)
    await gateway.services.database.execute("UPDATE sessions SET last_seen = now() - interval '1h'")
    # One that was seen now: both have been looked at once the other is closed.
    gateway.says("fox")
    await chat(gateway, {"role": "user", "content": "The lazy dog?"})
    async with judging(database_url, 1800):
        await gateway.until("SELECT id FROM sessions WHERE status = 'closed'")
    rows = await gateway.rows("SELECT status, end_reason FROM sessions ORDER BY id")
    assert [(row["status"], row["end_reason"]) for row in rows] == [
        ("closed", "idle"),
        ("open", None),
    ]


async def _ended(gateway: Gateway, reason: str) -> None:
    [session] = await gateway.rows("SELECT status, end_reason, ended_at FROM sessions")
    assert (session["status"], session["end_reason"]) == ("closed", reason)
    assert session["ended_at"] is not None
    first, last = await gateway.rows("SELECT id FROM turns ORDER BY id")
    verdicts = await gateway.rows("SELECT * FROM verdicts WHERE turn_id = $1", last["id"])
    assert [(each["outcome"], each["reason"]) for each in verdicts] == [
        ("unscored", "no_next_state")
    ]
    silent = await gateway.rows("SELECT 1 FROM next_states WHERE turn_id = $1", last["id"])
    assert silent == []
    followed = await gateway.rows("SELECT following_id FROM next_states WHERE turn_id = $1",
                                  first["id"])  # fmt: skip
    assert followed == [{"following_id": last["id"]}]
