"""A version that is rude is taken back by itself, one that is polite goes live by itself.

Real gateway, judge, gate and Postgres; users who say what they think of a reply, and an engine
whose words depend on the version that it is asked for.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.store.evidence import Evidence
from gateway.store.keys import KeyStore
from gateway.store.leadership import Leadership
from gateway.store.moves import PolicyMoves
from gateway.store.policies import PolicyStore
from judge.config import JudgeSettings
from judge.worker import run as run_judge
from tests.fixtures_gateway import Gateway, fake_gateway
from tests.planted import lead, plant
from tests.running import gateway_values
from trainer.gate_settings import GateSettings
from trainer.watch import Watch, opened

POLITE, RUDE = "Of course, here it is.", "Go away, you fool now."
PLEASED, CROSS = "Thanks, that is what I needed.", "No, that is wrong."


class Town:
    """A gateway and its users. `rude` are the versions that the engine is rude by."""

    def __init__(self, gateway: Gateway, leadership: Leadership, gate: GateSettings) -> None:
        self.gateway, self.lineage = gateway, gateway.keys.lineage_id
        self.rude: set[int] = set()
        self.epoch = leadership.epoch
        self.policies = PolicyStore(gateway.services.database)
        self._gate, self._numbers = gate, itertools.count()
        gateway.engine.script = self._says

    def _says(self, body: dict[str, Any]) -> Sequence[int] | None:
        if not body["sampling_params"].get("max_new_tokens"):
            return None
        version = int((body.get("lora_path") or "-v0").rpartition("-v")[2])
        tokenizer = self.gateway.services.tokenizer
        words = RUDE if version in self.rude else POLITE
        return [*tokenizer.encode(words), tokenizer.facts.stop_token_ids[0]]

    async def visit(self) -> None:
        """One user asks, and says what he thinks of the answer."""
        told: list[Any] = [{"role": "user", "content": f"Where is parcel {next(self._numbers)}?"}]
        async with self.gateway.client() as client:
            asked = await client.chat.completions.create(model="tiny", messages=told, max_tokens=40)
            said = asked.choices[0].message.content
            assert said in (POLITE, RUDE)
            told += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": PLEASED if said == POLITE else CROSS},
            ]
            await client.chat.completions.create(model="tiny", messages=told, max_tokens=40)

    async def visits_until(self, sql: str, *values: object) -> None:
        """Users come, some at a time, until a query has a row."""
        async with asyncio.timeout(600):
            while not await self.gateway.rows(sql, *values):
                await asyncio.gather(*(self.visit() for _ in range(4)))

    async def judged(self, count: int, version: int = 0) -> None:
        await self.visits_until(
            "SELECT count(*) FROM judgements j JOIN turns t ON t.id = j.turn_id"
            " WHERE j.state = 'done' AND t.version_min = $2 HAVING count(*) >= $1",
            count, version,
        )  # fmt: skip

    async def gate(self) -> dict[str, Any]:
        return opened(await self.policies.standing(self.lineage), self._gate, time.time())


@asynccontextmanager
async def town(
    database_url: str, model: Path, home: Path, **gate: Any
) -> AsyncIterator[tuple[Town, int]]:
    """With a judge and a gate that run, and a candidate."""
    settings = GateSettings(look_s=0.05, **gate)
    async with fake_gateway(database_url, model, home, chunk_tokens=64) as gateway:
        database, lineage = gateway.services.database, gateway.keys.lineage_id
        leadership = await lead(database, lineage)
        made = Town(gateway, leadership, settings)
        stop = asyncio.Event()
        values = gateway_values(database_url, model, gateway.engine.url, home)
        judge = asyncio.create_task(run_judge(JudgeSettings(**values), stop))
        watch = Watch(lineage, made.policies, PolicyMoves(database), Evidence(database), settings)
        await watch.start(leadership.epoch)
        try:
            yield made, await plant(database, lineage, leadership.epoch, home)
        finally:
            await watch.close()
            stop.set()
            await judge
            await leadership.release()


async def test_a_planted_regression_is_rolled_back_by_itself(
    database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    async with town(database_url, tiny_model, tmp_path) as (world, version):
        world.rude = {version}
        await world.judged(24)
        await world.policies.promote(world.lineage, world.epoch, version, await world.gate())
        await world.visits_until("SELECT FROM policies WHERE state = 'rolled_back'")
        [event] = await world.gateway.rows("SELECT detail FROM events WHERE name = 'rolled_back'")
        assert event["detail"]["reason"] == "the mean score changed by -2"
        assert event["detail"]["live"] == 0
        # The next who come are served by the version before, and what the rude one said is
        # trained on by nobody.
        pool = world.gateway.services.pool
        async with asyncio.timeout(120):
            while pool.choose(world.lineage, "anybody")[1].version:
                await asyncio.sleep(0.02)
        before = len(world.gateway.engine.requests)
        await world.visit()
        assert {r.get("lora_path") for r in world.gateway.engine.requests[before:]} == {None}
        states = await world.gateway.rows(
            "SELECT DISTINCT s.state, s.reason FROM samples s WHERE version_min = $1", version
        )
    assert {"state": "dropped", "reason": "rolled_back"} in states


async def test_a_planted_improvement_is_promoted_by_itself(
    database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    async with town(database_url, tiny_model, tmp_path, mode="canary", share=0.5) as found:
        world, version = found
        world.rude = {0}
        await world.policies.try_out(world.lineage, world.epoch, version, 0.5, await world.gate())
        await world.visits_until(
            "SELECT FROM policies WHERE state = 'live' AND version = $1", version
        )
        [row] = await world.gateway.rows("SELECT gate FROM policies WHERE version = $1", version)
        assert (row["gate"]["state"], row["gate"]["score_change"]) == ("pass", 2.0)
        # Both served at the same time, each session by one of them.
        sessions = await world.gateway.rows(
            "SELECT session_id, min(version_min) AS low, max(version_max) AS high FROM turns"
            " GROUP BY session_id"
        )
        assert {(row["low"], row["high"]) for row in sessions} >= {(0, 0), (version, version)}


@pytest.mark.parametrize("mode", ["watch", "canary"])
async def test_lineages_of_two_tenants_on_one_base_are_gated_apart(
    database_url: str, tiny_model: Path, tmp_path: Path, mode: str
) -> None:
    """The rude version of one tenant is taken back; the other's stays."""
    async with town(database_url, tiny_model, tmp_path, mode=mode, share=0.5) as found:
        world, version = found
        theirs: UUID = await _tenant(world, tmp_path)
        world.rude = {version}
        if mode == "watch":
            await world.judged(24)
            await world.policies.promote(world.lineage, world.epoch, version, await world.gate())
        else:
            gate = await world.gate()
            await world.policies.try_out(world.lineage, world.epoch, version, 0.5, gate)
        await world.visits_until("SELECT FROM policies WHERE state = 'rolled_back'")
        rows = await world.gateway.rows("SELECT lineage_id, version, state FROM policies")
    found_states = {(row["lineage_id"], row["version"]): row["state"] for row in rows}
    assert found_states == {
        (world.lineage, 0): "live",
        (world.lineage, version): "rolled_back",
        (theirs, 0): "retired",
        (theirs, 1): "live",
    }


async def _tenant(world: Town, home: Path) -> UUID:
    """Another tenant's lineage with a version 1 that is live."""
    database = world.gateway.services.database
    lineage = await KeyStore(database).ensure_lineage("theirs", "tiny")
    leadership = await lead(database, lineage)
    version = await plant(database, lineage, leadership.epoch, home)
    await world.policies.promote(lineage, leadership.epoch, version)
    await leadership.release()
    return lineage
