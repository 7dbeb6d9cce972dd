"""Two engines whose whole weights are replaced, a pool that follows Postgres, and a candidate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from gateway.config import DatabaseSettings, EngineSettings
from gateway.engine.pool import EnginePool
from gateway.engine.sglang import SglangEngine
from gateway.records import (
    Chunk,
    Finish,
    Generation,
    PolicyKind,
    PolicyRef,
    Sampling,
    new_id,
)
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.leadership import Leadership
from gateway.store.movers import EngineMovers
from gateway.store.policies import PolicyStore
from tests.fakes import FakeSglang
from tests.planted import lead, put_on_record
from tests.tiny_model import make_model
from trainer.backends.base import Probe, Proof
from trainer.checkpoint import checked, write_version
from trainer.compute import Compute
from trainer.config import PublishSettings
from trainer.publish import Publication, Publisher
from trainer.replace import Replacement

PROBES = (Probe(tuple(range(30, 50)), 1), Probe(tuple(range(60, 70)), 4))
TOKENS = 40


@dataclass(kw_only=True)
class Town:
    """Engines `one` and `two`, and what clients of them saw: `replies`, and none that failed."""

    database: Database
    lineage: UUID
    leadership: Leadership
    policies: PolicyStore
    fakes: tuple[FakeSglang, FakeSglang]
    pool: EnginePool
    publisher: Publisher
    movers: EngineMovers
    home: Path
    model: Path
    replies: list[tuple[list[int], Finish]] = field(default_factory=list)

    async def candidate(self) -> PolicyRef:
        """A version that a trainer has written and Postgres names."""
        version = await self.policies.allocate_version(self.lineage, self.leadership.epoch)
        written = write_version(
            self.home / "policies",
            version,
            lambda directory: make_model(directory, seed=version) and None,
            lambda directory: (directory / "state").write_text("x") and None,
        )
        policy = PolicyRef(
            lineage_id=self.lineage,
            version=version,
            kind=PolicyKind.FULL,
            uri=written.uri,
            checksum=written.checksum,
        )
        await put_on_record(self.policies, self.leadership.epoch, policy, written.state)
        return policy

    def proof(self, policy: PolicyRef) -> Proof:
        return proof_of(self.model, policy)

    async def publish(self, policy: PolicyRef) -> Publication:
        live = await self.policies.live_of(self.lineage)
        return await self.publisher.publish(
            policy, epoch=self.leadership.epoch, live=live, proof=self.proof(policy)
        )

    async def reply(self, session: str = "") -> tuple[list[int], Finish]:
        def request(policy: PolicyRef) -> Generation:
            return Generation(
                rid=new_id().hex,
                input_ids=tuple(range(20, 40)),
                # No token ends a reply before its limit.
                sampling=Sampling(
                    temperature=1.0, max_tokens=TOKENS, logit_bias={self.fakes[0].eos_id: -100.0}
                ),
                policy=policy,
            )

        chunks: list[Chunk] = []
        async with self.pool.generate(request, self.lineage, session) as stream:
            chunks += [chunk async for chunk in stream]
        finish = chunks[-1].finish
        assert finish is not None
        return [token for chunk in chunks for token in chunk.ids], finish

    @asynccontextmanager
    async def talking(self, agents: int = 6) -> AsyncIterator[None]:
        """Agents that ask again as soon as they are answered; whatever fails fails the test."""
        enough = asyncio.Event()

        async def agent(number: int) -> None:
            while not enough.is_set():
                self.replies.append(await self.reply(f"agent {number}"))

        tasks = [asyncio.create_task(agent(number)) for number in range(agents)]
        try:
            await self.until(lambda: len(self.replies) >= agents)
            yield
            heard = len(self.replies)
            await self.until(lambda: len(self.replies) >= heard + agents)
        finally:
            enough.set()
            await asyncio.gather(*tasks)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                await asyncio.sleep(0.005)

    async def serves(self, version: int, *names: str) -> None:
        """Wait until the pool has these engines (by default both) serve a version."""
        key, wanted = self.lineage.hex, names or ("one", "two")

        def served() -> bool:
            found = {one["name"]: one["serving"].get(key) for one in self.pool.describe()}
            return all(found[name] == version for name in wanted)

        await self.until(served)

    async def states(self) -> list[tuple[int, str]]:
        rows = await self.database.fetch("SELECT version, state FROM policies ORDER BY version")
        return [tuple(row) for row in rows]

    async def swaps(self) -> list[tuple[str, str]]:
        rows = await self.database.fetch("SELECT engine, outcome FROM swaps ORDER BY ended_at")
        return [tuple(row) for row in rows]


def proof_of(model: Path, policy: PolicyRef) -> Proof:
    """What an engine must compute that has a version's weights."""
    truth = FakeSglang(model_path=model)
    truth.weights = policy.uri or ""
    expected = tuple(tuple(truth.score(probe.ids, probe.start)) for probe in PROBES)
    return Proof(probes=PROBES, expected=expected, tolerance=0.02)


@asynccontextmanager
async def town(database_url: str, model: Path, home: Path) -> AsyncIterator[Town]:
    database = await Database.open(
        DatabaseSettings(spool=home / "spool"), database_url, application="test"
    )
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    await database.execute("UPDATE lineages SET kind = 'full'")
    one, two = (FakeSglang(model_path=model, chunk_delay_s=0.005) for _ in range(2))
    compute = Compute()
    async with one, two:
        # As engines are that serve the base model.
        one.weights = two.weights = str(model)
        settings = EngineSettings(control_timeout_s=30, connect_timeout_s=10, idle_timeout_s=60)
        engines = [
            SglangEngine(settings.model_copy(update={"name": name, "url": fake.url}))
            for name, fake in (("one", one), ("two", two))
        ]
        policies, movers = PolicyStore(database, str(model)), EngineMovers(database)
        publish = PublishSettings(load_timeout_s=60, gate={"mode": "off"})
        pool = EnginePool(engines, policies.served, movers=movers, poll_s=0.1)
        follower = asyncio.create_task(pool.follow())
        await database.listen("nextstate_policy", lambda _: pool.poke())
        leadership = await lead(database, lineage)
        found = Town(
            database=database,
            lineage=lineage,
            leadership=leadership,
            policies=policies,
            fakes=(one, two),
            pool=pool,
            publisher=Publisher(
                policies,
                engines,
                publish,
                Replacement(policies, engines, publish, movers, compute, check=checked),
            ),
            movers=movers,
            home=home,
            model=model,
        )
        try:
            await found.serves(0)
            yield found
        finally:
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower
            await pool.close()
            await leadership.release()
            await database.close()
            compute.close()
