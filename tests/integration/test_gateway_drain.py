"""One engine of several is drained: its sessions go elsewhere, at every gateway, and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config import DatabaseSettings, EngineSettings, ServerSettings, Settings
from gateway.store.database import Database
from gateway.store.workers import Heartbeat
from tests.admin import Answer, admin_of, call, done
from tests.fakes import FakeSglang, Turnstile
from tests.fixtures_engine import free_port
from tests.running import Gateway, Keys, gateway_values, make_keys, running_gateway

ASK: Any = [{"role": "user", "content": "The quick brown fox?"}]
SESSION = {"x-session-id": "a-conversation"}


@dataclass(kw_only=True)
class Fleet:
    """Two engines, `a` and `b`, and as many gateways before them as are asked for."""

    engines: dict[str, FakeSglang]
    keys: Keys
    values: dict[str, Any]
    stack: AsyncExitStack
    gateways: list[Gateway] = field(default_factory=list)

    async def another(self) -> Gateway:
        server = ServerSettings(port=free_port(), operators="one")
        database = self.values["database"]
        database = database.model_copy(update={"spool": database.spool / str(server.port)})
        values = self.values | {"gateway": server, "database": database}
        gateway = await self.stack.enter_async_context(
            running_gateway(Settings(**values), self.keys)
        )
        self.gateways.append(gateway)
        await until(lambda: both_up(gateway))
        return gateway

    async def ask(self, gateway: Gateway) -> str:
        """The name of the engine that a request of the session was served by."""
        before = {name: len(engine.requests) for name, engine in self.engines.items()}
        async with gateway.client() as client:
            await client.chat.completions.create(
                model="tiny", messages=ASK, max_tokens=4, extra_headers=SESSION
            )
        (name,) = [
            name for name, engine in self.engines.items() if len(engine.requests) > before[name]
        ]
        return name


async def both_up(gateway: Gateway) -> bool:
    return all(engine["serving"] for engine in gateway.services.pool.describe())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await condition():
            await asyncio.sleep(0.02)


@pytest.fixture
async def fleet(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(FakeSglang(model_path=tiny_model))
            for name in ("a", "b")
        }
        values = gateway_values(database_url, tiny_model, "", tmp_path)
        values["engines"] = tuple(
            EngineSettings(name=name, url=engine.url, idle_timeout_s=30)
            for name, engine in engines.items()
        )
        keys = await make_keys(database_url, "tiny")
        yield Fleet(engines=engines, keys=keys, values=values, stack=stack)


async def engine_of(gateway: Gateway, name: str, key: str | None = None) -> Any:
    """How an engine stands, as an admin is told."""
    found = {one["name"]: one for one in (await done(gateway, "GET", "engines", key=key))["items"]}
    return found[name]


async def ready(gateway: Gateway) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}/readyz") as got:
        return got.status, await got.json()


async def metric(gateway: Gateway, name: str, engine: str) -> float:
    headers = {"authorization": f"Bearer {gateway.keys.admin}"}
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{gateway.url}/metrics", headers=headers) as got,
    ):
        text = await got.text()
    (value,) = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels.get("engine") == engine
    ]
    return value


async def sent(
    gateway: Gateway, path: str, *, mark: str | None = None, key: str | None = None
) -> Answer:
    headers = {"authorization": f"Bearer {key or gateway.keys.admin}"}
    if mark is not None:
        headers["idempotency-key"] = mark
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{gateway.url}/admin/v1/{path}", headers=headers) as got,
    ):
        return Answer(got.status, dict(got.headers), await got.json(content_type=None))


async def actions(gateway: Gateway) -> list[str]:
    return [one["action"] for one in (await done(gateway, "GET", "audit"))["items"]]


async def test_a_session_goes_elsewhere_at_every_gateway_and_comes_back(fleet: Fleet) -> None:
    one, two = await fleet.another(), await fleet.another()
    home = await fleet.ask(one)
    assert await fleet.ask(two) == home
    (away,) = {*fleet.engines} - {home}
    fleet.engines[home].turnstile = gate = Turnstile()
    ids = one.services.tokenizer.encode("jumps over the lazy dog")
    fleet.engines[home].replies.append([*ids, 2])
    async with one.client() as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=ASK, stream=True, extra_headers=SESSION
        )
        gate.release()
        text = ""
        while not text:
            chunk = await anext(aiter(stream))
            text = chunk.choices[0].delta.content or ""

        told = await done(one, "POST", f"engines/{home}/drain", reason="a new driver")
        assert (told["name"], told["draining"], told["drained"]) == (home, True, False)
        assert (told["requests"], told["reason"], len(told["gateways"])) == (1, "a new driver", 2)
        # This gateway keeps off it already, the other one as soon as it has heard of it.
        assert await fleet.ask(one) == away

        async def followed() -> bool:
            return all(at["draining"] for at in (await engine_of(two, home))["gateways"])

        await until(followed)
        assert await fleet.ask(two) == away
        found = await engine_of(two, home)
        assert (found["requests"], found["drained"]) == (1, False)
        assert sorted(at["requests"] for at in found["gateways"]) == [0, 1]

        status, body = await ready(one)
        assert (status, body["status"]) == (200, "ready")
        for engines in (body["engines"], (await done(one, "GET", "status"))["engines"]):
            assert {each["name"]: (each["draining"], each["requests"]) for each in engines} == {
                home: (True, 1),
                away: (False, 0),
            }
        for name in ("nextstate_engine_draining", "nextstate_engine_in_flight"):
            assert (await metric(one, name, home), await metric(one, name, away)) == (1, 0)
        assert await metric(two, "nextstate_engine_in_flight", home) == 0

        for _ in ids:
            gate.release()
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason
    assert (text, reason) == ("jumps over the lazy dog", "stop")
    turns = await one.rows("SELECT engine, count(*) AS n FROM turns GROUP BY 1")
    assert {turn["engine"]: turn["n"] for turn in turns} == {home: 3, away: 2}

    async def drained() -> bool:
        return bool((await engine_of(two, home))["drained"])

    await until(drained)
    # It is started anew, and a gateway that starts meanwhile keeps off it from the start.
    await fleet.engines[home].restart()
    three = await fleet.another()
    assert await fleet.ask(three) == away

    told = await done(two, "POST", f"engines/{home}/resume")
    assert (told["draining"], told["drained"], told["since"], told["by"]) == (
        False,
        False,
        None,
        None,
    )
    fleet.engines[home].turnstile = None
    for gateway in fleet.gateways:

        async def back(gateway: Gateway = gateway) -> bool:
            pool = gateway.services.pool.describe()
            return not any(engine["draining"] for engine in pool) and await both_up(gateway)

        await until(back)
        assert await fleet.ask(gateway) == home
    assert await actions(one) == ["engine_resumed", "engine_drained"]


async def test_where_no_other_is_left_requests_are_refused_before_the_first_byte(
    fleet: Fleet,
) -> None:
    gateway = await fleet.another()
    for name in fleet.engines:
        await done(gateway, "POST", f"engines/{name}/drain")
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for path in ("chat/completions", "messages", "responses"):
            for stream in (False, True):
                body = {"model": "tiny", "max_tokens": 4, "messages": ASK, "input": "Hi"}
                asked = http.post(f"{gateway.url}/v1/{path}", json=body | {"stream": stream})
                async with asked as got:
                    assert got.status in (503, 529), await got.text()
                    assert got.headers["retry-after"] == "1"
    assert all(not engine.requests for engine in fleet.engines.values())
    status, body = await ready(gateway)
    assert (status, body["status"]) == (503, "no_engine")
    await done(gateway, "POST", "engines/b/resume")
    assert await fleet.ask(gateway) == "b"
    assert (await ready(gateway))[0] == 200


async def test_operators_alone_drain_and_only_what_is_there(fleet: Fleet) -> None:
    gateway = await fleet.another()
    theirs = await admin_of(gateway, "other")
    for key, status in ((theirs, 403), (gateway.keys.agent, 403), ("sk-ns-nobody", 401)):
        for verb in ("drain", "resume"):
            assert (await sent(gateway, f"engines/a/{verb}", key=key)).status == status
    for verb in ("drain", "resume"):
        unknown = await sent(gateway, f"engines/c/{verb}")
        assert (unknown.status, unknown.body["status"], unknown.body["code"]) == (
            404,
            404,
            "not_found",
        )
        assert unknown.headers["Content-Type"] == "application/problem+json"
    assert (await call(gateway, "POST", "engines/a%00/drain")).status == 400
    # Why and by whom is told to operators; that it drains, to every admin.
    told = await done(gateway, "POST", "engines/a/drain", reason="secret plans")
    again = await done(gateway, "POST", "engines/a/drain", reason="others")
    assert again == told
    assert (told["reason"], told["drained"]) == ("secret plans", True)
    assert await engine_of(gateway, "a") == told
    assert await engine_of(gateway, "a", theirs) == told | {"reason": None, "by": None}
    assert (await engine_of(gateway, "b"))["draining"] is False
    assert (await call(gateway, "GET", "engines", key=gateway.keys.agent)).status == 403
    assert await actions(gateway) == ["engine_drained"]


async def test_what_is_sent_again_late_drains_nothing_again(fleet: Fleet) -> None:
    gateway = await fleet.another()
    first = await sent(gateway, "engines/a/drain", mark="m")
    assert (first.status, first.body["draining"]) == (200, True)
    assert (await sent(gateway, "engines/a/resume", mark="n")).body["draining"] is False
    late = await sent(gateway, "engines/a/drain", mark="m")
    assert (late.status, late.body["draining"]) == (200, False)
    for path in ("engines/b/drain", "engines/a/resume", "engines/a/drain?reason=x"):
        other = await sent(gateway, path, mark="m")
        assert (other.status, other.body["code"]) == (409, "idempotency_key_used")
    # One that found nothing to do is remembered as well.
    assert (await sent(gateway, "engines/a/resume", mark="o")).status == 200
    await done(gateway, "POST", "engines/a/drain")
    assert (await sent(gateway, "engines/a/resume", mark="o")).body["draining"] is True
    many = await asyncio.gather(*(sent(gateway, "engines/b/drain", mark="p") for _ in range(4)))
    assert [one.status for one in many] == [200] * 4
    assert (await actions(gateway)).count("engine_drained") == 3


async def test_an_engine_that_another_gateway_has_is_drained_from_here(
    fleet: Fleet, database_url: str
) -> None:
    gateway = await fleet.another()
    database = await Database.open(DatabaseSettings(), database_url, application="another")
    # It is of an earlier release, and follows no draining.
    report = {"engines": [{"name": "c", "healthy": True}], "in_flight": {}}
    try:
        async with Heartbeat(database, "gateway", lambda: report):
            told = await done(gateway, "POST", "engines/c/drain")
            assert (told["draining"], told["drained"]) == (True, False)
            assert [(at["draining"], at["requests"]) for at in told["gateways"]] == [(False, None)]
    finally:
        await database.close()
    # With its gateway gone it can still be taken off the list.
    assert (await engine_of(gateway, "c"))["gateways"] == []
    assert (await sent(gateway, "engines/c/drain")).status == 404
    gone = await done(gateway, "POST", "engines/c/resume")
    assert (gone["name"], gone["draining"], gone["gateways"]) == ("c", False, [])
    items = (await done(gateway, "GET", "engines"))["items"]
    assert [one["name"] for one in items] == ["a", "b"]


async def test_what_drains_goes_on_while_postgres_is_away(fleet: Fleet) -> None:
    gateway = await fleet.another()
    await done(gateway, "POST", "engines/a/drain")
    await gateway.services.database.execute("ALTER TABLE settings RENAME TO settings_away")
    await gateway.services.drains.refresh()
    assert [one["draining"] for one in gateway.services.pool.describe()] == [True, False]
    await gateway.services.database.execute("ALTER TABLE settings_away RENAME TO settings")
    assert await fleet.ask(gateway) == "b"
