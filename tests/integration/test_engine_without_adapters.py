"""Engines that take no adapters are asked, told of, and left out; the others serve the version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from gateway.config import EngineSettings
from gateway.engine.member import NO_ADAPTERS
from gateway.engine.pool import EnginePool
from gateway.engine.sglang import SglangEngine
from gateway.records import PolicyRef
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.movers import EngineMovers
from gateway.store.policies import PolicyStore
from tests.fakes import FakeSglang
from tests.planted import lead, plant
from trainer.backends.base import Probe, Proof
from trainer.checkpoint import checked
from trainer.compute import Compute
from trainer.config import PublishSettings
from trainer.publish import Publication, Publisher
from trainer.replace import Replacement

PROBE = Probe(tuple(range(30, 50)), 1)


@dataclass(kw_only=True)
class World:
    database: Database
    lineage: UUID
    policies: PolicyStore
    fakes: list[FakeSglang]
    pool: EnginePool
    publisher: Publisher
    epoch: int
    home: Path

    async def publish(self) -> Publication:
        """The next version, which computes what the engines say."""
        await plant(self.database, self.lineage, self.epoch, self.home)
        return await self.again()

    async def again(self) -> Publication:
        """The version that waits."""
        candidate = await self.policies.candidate_of(self.lineage)
        assert candidate is not None
        truth = FakeSglang()
        truth.known_adapters[candidate.adapter or ""] = candidate.uri or ""
        expected = tuple(truth.score(PROBE.ids, PROBE.start, candidate.adapter))
        return await self.publisher.publish(
            candidate,
            epoch=self.epoch,
            live=await self.policies.live_of(self.lineage),
            proof=Proof(probes=(PROBE,), expected=(expected,), tolerance=0.02),
        )

    async def served(self, *versions: int | None) -> None:
        """Wait until the engines, in their order, serve these versions."""
        async with asyncio.timeout(60):
            while [one["serving"].get(self.lineage.hex) for one in self.pool.describe()] != [
                *versions
            ]:
                await asyncio.sleep(0.01)

    def chosen(self) -> set[tuple[str, PolicyRef]]:
        pairs = [self.pool.choose(self.lineage, f"session {n}") for n in range(40)]
        return {(engine.name, policy) for engine, policy in pairs}


@asynccontextmanager
async def open_world(database: Database, home: Path) -> AsyncIterator[World]:
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    leadership = await lead(database, lineage)
    compute = Compute()
    async with FakeSglang() as one, FakeSglang() as two:
        two.takes_adapters = False
        engines = [
            SglangEngine(EngineSettings(name=name, url=fake.url))
            for name, fake in (("one", one), ("two", two))
        ]
        policies, settings = PolicyStore(database), PublishSettings(gate={"mode": "off"})
        movers = EngineMovers(database)
        pool = EnginePool(engines, policies.served, movers=movers, poll_s=0.05)
        follower = asyncio.create_task(pool.follow())
        replacement = Replacement(policies, engines, settings, movers, compute, check=checked)
        try:
            yield World(
                database=database,
                lineage=lineage,
                policies=policies,
                fakes=[one, two],
                pool=pool,
                publisher=Publisher(policies, engines, settings, replacement),
                epoch=leadership.epoch,
                home=home,
            )
        finally:
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower
            await pool.close()
            await leadership.release()
            compute.close()


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, tmp_path) as world:
        yield world


async def test_the_others_serve_the_version_and_it_is_left_out(world: World) -> None:
    done = await world.publish()
    assert done.outcome == "published"
    assert [(swap.engine, swap.outcome, swap.detail) for swap in done.swaps] == [
        ("one", "loaded", None),
        ("two", "incapable", NO_ADAPTERS),
    ]
    live = await world.policies.live_of(world.lineage)
    await world.served(1, 0)
    assert world.chosen() == {("one", live)}
    failing = [list(one["failing"].values()) for one in world.pool.describe()]
    assert failing == [[], [NO_ADAPTERS]]
    assert world.fakes[1].known_adapters == {}
    # Started anew it takes them, is given the live version, and serves.
    world.fakes[1].takes_adapters = True
    await world.fakes[1].restart()
    await world.served(1, 1)
    assert world.chosen() == {("one", live), ("two", live)}


async def test_where_no_engine_takes_adapters_the_version_waits(world: World) -> None:
    world.fakes[0].takes_adapters = False
    done = await world.publish()
    assert (done.outcome, done.reason) == (
        "unreachable",
        "no engine can be reached that takes adapters",
    )
    assert (await world.policies.live_of(world.lineage)).version == 0
    assert await world.policies.candidate_of(world.lineage) is not None
    world.fakes[0].takes_adapters = True
    assert (await world.again()).outcome == "published"
    await world.served(1, 0)
