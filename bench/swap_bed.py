"""A gateway as it is run, over engines whose versions change as a trainer changes them."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import UUID

import aiohttp
import yaml

from bench.processes import Process, python
from bench.swap_load import NAME
from bench.swap_spans import Score
from gateway.config import DatabaseSettings, EngineSettings
from gateway.engine.sglang import SglangEngine
from gateway.local.processes import free_port
from gateway.records import PolicyKind, PolicyRef, Role
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.leadership import Leadership
from gateway.store.movers import EngineMovers
from gateway.store.policies import PolicyStore
from gateway.store.workers import Workers
from tests.planted import put_on_record
from trainer.backends.base import Probe, Proof
from trainer.checkpoint import checked, write_version
from trainer.compute import Compute
from trainer.config import PublishSettings
from trainer.drain import Drain
from trainer.publish import Publisher
from trainer.replace import Replacement

#: Different weights; versions take them in turn.
WEIGHTS = 4
#: What a version is proved by, and how exactly the same engine computes the same again.
PROBES = (Probe(tuple(range(30, 94)), 1),)
TOLERANCE_NATS = 2e-3


@dataclass(frozen=True, slots=True)
class Place:
    """Engines that answer, weights in `home`, and an empty, migrated database."""

    engines: Sequence[EngineSettings]
    home: Path
    database_url: str


class Bed:
    """One lineage: the gateway in a process of its own, and what its trainer would do, here."""

    def __init__(
        self,
        *,
        database: Database,
        engines: Sequence[SglangEngine],
        leadership: Leadership,
        lineage: UUID,
        kind: PolicyKind,
        home: Path,
        compute: Compute,
    ) -> None:
        self.engines, self.lineage, self.kind = engines, lineage, kind
        self.database, self._leadership, self._home = database, leadership, home
        self._policies = PolicyStore(database, str(home / "model-0"))
        publish = PublishSettings(gate={"mode": "off"}, drain_poll_s=0.2)
        movers = EngineMovers(database)
        replacement = Replacement(self._policies, engines, publish, movers, compute, check=checked)
        self._publisher = Publisher(self._policies, engines, publish, replacement)
        self._drain = Drain(lineage, engines, Workers(database), publish)
        self._proofs: list[Proof] = []
        self.url = self.key = ""
        self.log = home / "gateway.log"
        self._gateway: Process | None = None
        self._http: aiohttp.ClientSession

    @classmethod
    @asynccontextmanager
    async def open(cls, place: Place, kind: PolicyKind) -> AsyncIterator[Self]:
        """Raises NotReady."""
        async with AsyncExitStack() as stack:
            database = await Database.open(
                DatabaseSettings(), place.database_url, application="bench"
            )
            stack.push_async_callback(database.close)
            clients = [SglangEngine(settings) for settings in place.engines]
            for client in clients:
                stack.push_async_callback(client.close)
            keys = KeyStore(database)
            lineage = await keys.ensure_lineage(
                "default", NAME, "lora" if kind is PolicyKind.LORA else "full"
            )
            tenant = await keys.ensure_tenant("bench")
            _, key = await keys.create(tenant, "bench", Role.AGENT, lineage)
            leadership = await PolicyStore(database).become_leader(lineage)
            assert leadership is not None, "the database is not empty"
            stack.push_async_callback(leadership.release)
            compute = Compute()
            stack.callback(compute.close)
            bed = cls(
                database=database,
                engines=clients,
                leadership=leadership,
                lineage=lineage,
                kind=kind,
                home=place.home,
                compute=compute,
            )
            stack.push_async_callback(bed._drain.close)
            await bed._prove()
            bed._http = await stack.enter_async_context(aiohttp.ClientSession())
            bed.key = key
            stack.push_async_callback(bed.close_gateway)
            await bed._start_gateway(place)
            await bed.serving(0)
            yield bed

    async def _start_gateway(self, place: Place) -> None:
        port = free_port("127.0.0.1", 0)
        settings = {
            "gateway": {"port": port},
            "model": {"path": str(self._home / "model-0"), "name": NAME},
            "engines": [{"name": engine.name, "url": engine.url} for engine in place.engines],
            "database": {"url": place.database_url, "spool": str(self._home / "spool")},
            "log": {"format": "json"},
        }
        file = self._home / "nextstate.yaml"
        file.write_text(yaml.safe_dump(settings))
        file.chmod(0o600)
        self._gateway = Process(
            "gateway",
            python("-m", "gateway", "serve"),
            log=self.log,
            on=os.sched_getaffinity(0),
            environment={"NEXTSTATE_CONFIG": str(file)},
        )
        self.url = f"http://127.0.0.1:{port}"
        await self._gateway.listening(port, 120)

    async def close_gateway(self) -> None:
        """Nobody serves any more, nor brings an engine to the live version."""
        process, self._gateway = self._gateway, None
        if process is not None:
            await asyncio.to_thread(process.stop)

    # Weights

    def _weights(self, number: int) -> Path:
        kind = "adapter" if self.kind is PolicyKind.LORA else "model"
        return self._home / f"{kind}-{number}"

    def _aside(self, number: int) -> PolicyRef:
        """Weights of a number under a name that is no version's on record."""
        return PolicyRef(
            lineage_id=self.lineage,
            version=10**9 + number,
            kind=self.kind,
            uri=str(self._weights(number)),
        )

    async def _prove(self) -> None:
        """Note what each of the weights compute, as a trainer that has them knows it."""
        for number in range(WEIGHTS):
            score = await self.by_weights(number)
            expected = [tuple(await score(probe.ids, probe.start)) for probe in PROBES]
            proof = Proof(probes=PROBES, expected=tuple(expected), tolerance=TOLERANCE_NATS)
            self._proofs.append(proof)
            await self.engines[0].unload(self._aside(number))

    async def by_weights(self, number: int) -> Score:
        """Bring weights of a number to the first engine; how to score by them there."""
        policy, engine = self._aside(number), self.engines[0]
        await engine.load(policy)

        async def score(ids: Sequence[int], start: int) -> list[float]:
            return await engine.score(ids, start, policy)

        return score

    # Versions

    async def candidate(self) -> PolicyRef:
        """A version that is written and that Postgres names."""
        epoch = self._leadership.epoch
        version = await self._policies.allocate_version(self.lineage, epoch)
        source = self._weights(version % WEIGHTS)
        written = await asyncio.to_thread(
            write_version,
            self._home / "versions",
            version,
            lambda directory: shutil.copytree(source, directory, dirs_exist_ok=True) and None,
            lambda directory: (directory / "state").write_text("none") and None,
        )
        policy = PolicyRef(
            lineage_id=self.lineage,
            version=version,
            kind=self.kind,
            uri=written.uri,
            checksum=written.checksum,
        )
        await put_on_record(self._policies, epoch, policy, written.state)
        return policy

    async def publish(self, policy: PolicyRef) -> None:
        """Bring a version to every engine, prove it, make it live, and wait until all serve it."""
        live = await self._policies.live_of(self.lineage)
        done = await self._publisher.publish(
            policy,
            epoch=self._leadership.epoch,
            live=live,
            proof=self._proofs[policy.version % WEIGHTS],
        )
        if done.outcome != "published" or any(one.outcome != "loaded" for one in done.swaps):
            raise RuntimeError(f"version {policy.version} was {done.outcome}: {done.swaps}")
        await self._drain.start(policy.version)
        await self.serving(policy.version)

    async def serving(self, version: int) -> None:
        """Wait until the gateway says that every engine serves a version."""
        async with asyncio.timeout(120):
            while True:
                async with self._http.get(f"{self.url}/readyz") as response:
                    told = await response.json()
                engines = [one["serving"].get(self.lineage.hex) for one in told["engines"]]
                if all(number == version for number in engines):
                    return
                await asyncio.sleep(0.02)

    async def drained(self) -> None:
        """Wait until no engine has a version that is not live."""
        live = await self._policies.live_of(self.lineage)
        async with asyncio.timeout(120):
            for engine in self.engines:
                while await self._loaded(engine) - {live.adapter}:  # noqa: ASYNC110 - no bell
                    await asyncio.sleep(0.1)

    async def _loaded(self, engine: SglangEngine) -> set[str]:
        adapters = (await engine.status()).adapters
        return {name for name in adapters if name.startswith(self.lineage.hex)}

    def again(self) -> int:
        """How often the gateway asked an engine a second time for the same request."""
        return self.log.read_text(errors="replace").count('"attempt_failed"')
