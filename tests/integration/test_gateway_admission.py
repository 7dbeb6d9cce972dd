"""Back-pressure at two gateways on one database: who is turned away, and who never is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config import DatabaseSettings, FreshnessSettings, Settings
from gateway.records import Judgement, PolicyKind, PolicyRef, Role, StepRecord, new_id
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.workers import Heartbeat
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway
from tests.running import gateway_values, make_keys, running_gateway

MESSAGES = [{"role": "user", "content": "The quick brown fox?"}]
#: η = 1 and b = 2: four turns may be pending, and eight are the hard cap.
ALLOWED, OVER = 4, 8


@dataclass
class Reply:
    status: int
    headers: Any
    body: dict[str, Any]


@dataclass
class Scene:
    """Two gateways, of which every other request goes to the one, and their keys."""

    gateways: list[Gateway]
    database: Database
    rollout: str
    agent: str
    uncaptured: str
    turn: int = 0

    async def ask(
        self,
        session: str | None = None,
        *,
        key: str | None = None,
        kind: str = "main",
        gateway: int | None = None,
        path: str = "chat/completions",
        messages: list[dict[str, Any]] | None = None,
        done: bool = False,
        **body: Any,
    ) -> Reply:
        self.turn += 1
        one = self.gateways[self.turn % 2 if gateway is None else gateway]
        one.says("fox")
        headers = {
            "authorization": f"Bearer {key or self.rollout}",
            "x-session-id": session or f"session-{self.turn}",
            "x-turn-type": kind,
            "x-session-done": str(done).lower(),
        }
        said = {"model": "tiny", "messages": messages or MESSAGES, "max_tokens": 50, **body}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{one.url}/v1/{path}", json=said) as answer,
        ):
            content = await answer.json() if not body.get("stream") else {}
            await answer.read()
        if answer.status != 200:
            one.engine.replies.clear()
        return Reply(answer.status, answer.headers, content)

    async def fill(self, turns: int, *, before: int = 0) -> None:
        """So many answered turns more, of sessions of a key that is served whatever waits."""
        for _ in range(turns):
            assert (await self.ask(key=self.agent)).status == 200
        await self.known(before + turns)

    async def known(self, pending: int) -> None:
        """Wait until both gateways know of so many turns that wait."""
        lineage = self.gateways[0].keys.lineage_id
        async with asyncio.timeout(120):
            for one in self.gateways:
                while (load := one.services.admitter.load(lineage)) is None or (
                    load.pending != pending
                ):
                    await asyncio.sleep(0.01)

    async def at_rest(self) -> None:
        """Wait until the heartbeats of both gateways say that they sample nothing."""
        busy = "SELECT count(*) FROM workers WHERE kind = 'gateway' AND detail -> 'running' <> '{}'"
        async with asyncio.timeout(120):
            while await self.count(busy):
                await asyncio.sleep(0.05)

    async def count(self, sql: str, *values: object) -> int:
        ((found,),) = await self.database.fetch(sql, *values)
        return int(found)


@asynccontextmanager
async def scene_of(
    database_url: str, model: Path, home: Path, *kinds: str, refresh_s: float = 0.2
) -> AsyncIterator[Scene]:
    """With heartbeats of workers of some kinds, before the gateways are there."""
    keys = await make_keys(database_url, "tiny")
    told = {"batch": 2, "lineages": {keys.lineage_id.hex: {"leads": True}}}
    async with AsyncExitStack() as stack:
        database = await Database.open(DatabaseSettings(), database_url, application="test")
        stack.push_async_callback(database.close)
        for kind in kinds:
            await stack.enter_async_context(Heartbeat(database, kind, lambda: told))
        gateways = []
        for number in range(2):
            engine = await stack.enter_async_context(FakeSglang(model_path=model))
            values = gateway_values(database_url, model, engine.url, home / str(number))
            values["freshness"] = FreshnessSettings(
                max_lag=1, batch=2, hard_cap=OVER / ALLOWED, refresh_s=refresh_s, idle_s=600
            )
            running = await stack.enter_async_context(running_gateway(Settings(**values), keys))
            gateways.append(
                Gateway(url=running.url, keys=keys, services=running.services, engine=engine)
            )
        store, lineage = KeyStore(database), keys.lineage_id
        tenant = await store.ensure_tenant("one")
        _, rollout = await store.create(tenant, "rollout", Role.ROLLOUT, lineage)
        _, uncaptured = await store.create(
            tenant, "quiet", Role.ROLLOUT, lineage, capture=False, on_stale="reject"
        )
        yield Scene(gateways, database, rollout, keys.agent, uncaptured)


@pytest.fixture
async def scene(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_of(database_url, tiny_model, tmp_path, "judge", "trainer") as scene:
        yield scene


async def test_only_a_new_session_that_asks_to_be_trained_on_is_turned_away(scene: Scene) -> None:
    assert (await scene.ask("mine", gateway=0)).status == 200
    await scene.fill(ALLOWED - 1, before=1)

    for gateway in (0, 1):
        refused = await scene.ask(gateway=gateway)
        assert refused.status == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.body["error"]["code"] == "training_behind"
        assert "4 turns wait" in refused.body["error"]["message"]
    refused = await scene.ask(path="messages")
    assert refused.status == 429
    assert refused.body["type"] == "error"
    assert refused.body["error"]["type"] == "rate_limit_error"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert (await scene.ask(path="responses", messages=None, input="Fox?")).status == 429
    assert (await scene.ask(stream=True)).status == 429

    assert (await scene.ask(kind="side")).status == 200
    assert (await scene.ask(key=scene.uncaptured)).status == 200
    assert (await scene.ask(temperature=0)).status == 200, "it could not be trained on"
    assert (await scene.ask(key=scene.agent)).status == 200
    live = await scene.ask("mine", messages=_followed("fox"), gateway=1)
    assert live.status == 200
    assert "x-nextstate-capture" not in live.headers
    sessions = await scene.count(
        "SELECT count(*) FROM sessions s JOIN api_keys k ON"
        " k.id = s.key_id WHERE k.name = 'rollout'"
    )
    # `mine`, the side call's and the one at temperature 0: nothing is left of those refused.
    assert sessions == 3


async def test_beyond_the_hard_cap_live_sessions_are_served_uncaptured(scene: Scene) -> None:
    assert (await scene.ask("mine")).status == 200
    await scene.fill(OVER - 1, before=1)
    stored = "SELECT count(*) FROM turns"
    before = await scene.count(stored)

    still = "SELECT count(*) FROM sessions WHERE external_id = 'mine' AND status = 'open'"
    for body in ({}, {"stream": True}, {"done": True}):
        assert await scene.count(still) == 1
        live = await scene.ask("mine", messages=_followed("fox"), **body)
        assert (live.status, live.headers["x-nextstate-capture"]) == (200, "off")
    # What its client says of the session counts, captured or not.
    assert await scene.count(still) == 0
    ended = "SELECT count(*) FROM sessions WHERE end_reason = 'client_done'"
    assert await scene.count(ended) == 1
    opened = await scene.ask(key=scene.agent)
    assert (opened.status, opened.headers["x-nextstate-capture"]) == (200, "off")
    assert (await scene.ask()).status == 429

    assert await scene.count(stored) == before
    # What followed the stored turn was stored as it came, and waits for a judge.
    assert await scene.count("SELECT count(*) FROM next_states") == 1
    assert await scene.count("SELECT count(*) FROM judgements WHERE state = 'queued'") == 1


@pytest.mark.parametrize("kinds", [("judge",), ("trainer",), ()])
async def test_without_a_judge_or_a_trainer_nothing_is_held_back(
    database_url: str, tiny_model: Path, tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    async with scene_of(database_url, tiny_model, tmp_path, *kinds) as scene:
        for _ in range(OVER + 1):
            reply = await scene.ask()
            assert reply.status == 200
            assert "x-nextstate-capture" not in reply.headers
        assert await scene.count("SELECT count(*) FROM turns") == OVER + 1
        assert {one.services.admitter.state() for one in scene.gateways} == {"off"}


async def test_requests_are_counted_without_a_query(
    database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Gateways that read once an hour know what they have opened themselves, and hold it back."""
    kinds = ("judge", "trainer")
    async with scene_of(database_url, tiny_model, tmp_path, *kinds, refresh_s=7200) as scene:
        lineage = scene.gateways[0].keys.lineage_id
        for _ in range(ALLOWED):
            assert (await scene.ask(key=scene.agent, gateway=0)).status == 200
        assert (await scene.ask(gateway=0)).status == 429
        loads = [one.services.admitter.load(lineage) for one in scene.gateways]
        assert [load.pending for load in loads if load is not None] == [ALLOWED, 0]


async def test_room_is_known_at_once_when_a_version_has_consumed_its_samples(
    database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    kinds = ("judge", "trainer")
    async with scene_of(database_url, tiny_model, tmp_path, *kinds, refresh_s=7200) as scene:
        for number in range(ALLOWED):
            for messages in (MESSAGES, _followed("fox")):
                reply = await scene.ask(f"s{number}", key=scene.agent, gateway=0, messages=messages)
                assert reply.status == 200
        assert (await scene.ask(gateway=0)).status == 429
        await scene.at_rest()
        # Half of the turns are consumed; the others wait to be followed. Nobody reads by himself.
        await _trained(scene, ALLOWED)
        await scene.known(ALLOWED)


async def test_operators_see_it(scene: Scene) -> None:
    await scene.fill(ALLOWED)
    one = scene.gateways[0]
    headers = {"authorization": f"Bearer {one.keys.admin}"}
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{one.url}/readyz") as answer:
            assert answer.status == 200
            assert (await answer.json())["admission"] == "full"
        async with http.get(f"{one.url}/admin/v1/status", headers=headers) as answer:
            (lineage,) = (await answer.json())["lineages"]
    found = lineage["admission"]
    assert found.pop("age_s") <= 1
    assert found == {
        "state": "full",
        "capacity": 0,
        "backlog": 0,
        "running": ALLOWED,
        "batch": 2,
        "step_s": None,
    }


async def _trained(scene: Scene, count: int) -> None:
    """Judge what waits and consume it, as a judge and a trainer do."""
    database, lineage = scene.database, scene.gateways[0].keys.lineage_id
    claims, worker = JudgeClaims(database), new_id()
    for job in await claims.claim(worker, count, 60):
        assert await claims.finish(worker, job, Judgement(judge="rules", score=1.0), "binary")
    policies, samples = PolicyStore(database), SampleStore(database)
    leadership = await policies.become_leader(lineage)
    assert leadership is not None
    ids = [head.id for head in await samples.window(lineage, count)]
    assert len(ids) == count
    await samples.lease(lineage, leadership.epoch, ids)
    version = await policies.allocate_version(lineage, leadership.epoch)
    policy = PolicyRef(
        lineage_id=lineage, version=version, kind=PolicyKind.LORA, uri="/v", checksum="abc"
    )
    step = StepRecord(
        id=new_id(),
        lineage_id=lineage,
        epoch=leadership.epoch,
        from_version=0,
        to_version=version,
        policy=policy,
        checkpoint="/state",
        sample_ids=tuple(ids),
        lags=(0,) * count,
        metrics={},
        started_at=1.0,
        ended_at=2.0,
    )
    await policies.advance(step)
    await leadership.release()


def _followed(reply: str) -> list[dict[str, Any]]:
    return [
        *MESSAGES,
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "Thanks. And the dog?"},
    ]
