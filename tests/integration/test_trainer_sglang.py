"""What the trainer writes is what the real SGLang serves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace as replace_dataclass
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from gateway.config import EngineSettings
from gateway.engine.base import Bucket, Group
from gateway.engine.pool import EnginePool
from gateway.engine.sglang import SglangEngine
from gateway.records import (
    Chunk,
    Generation,
    PolicyKind,
    PolicyRef,
    Sampling,
    VersionSpan,
    new_id,
)
from gateway.store.movers import EngineMovers
from gateway.store.policies import PolicyStore
from tests.tiny_llama import sample
from tests.training import World, open_world
from trainer.backends.base import Probe
from trainer.backends.torch_backend import TorchBackend
from trainer.packing import pack

pytestmark = pytest.mark.sglang

CUT = Sampling(temperature=0.8, top_k=8, top_p=0.9, max_tokens=24)


@pytest.fixture
async def world(
    database_url: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")
    async with open_world(database_url, tiny_model, tmp_path) as world:
        yield world


def _among(backend: TorchBackend, prompt: tuple[int, ...], chunks: list[Chunk]) -> list[float]:
    """What the trainer computes of a reply over the ids that it was sampled from."""
    ids = tuple(id_ for chunk in chunks for id_ in chunk.ids)
    kept = tuple(row for chunk in chunks for row in chunk.kept)
    assert len(kept) == len(ids) > 0
    one = replace_dataclass(sample(prompt, ids), temperature=0.8, kept=kept)
    vocab = backend.vocab_size
    (found,) = backend.logprobs(pack([one], [(0.0,) * len(ids)], vocab=vocab, budget=512))
    return [float(value) for value in found]


async def test_two_versions_are_proved_served_and_drained(world: World, sglang_url: str) -> None:
    engine = SglangEngine(EngineSettings(name="real", url=sglang_url))
    lineage = world.lineage.hex
    try:
        async with world.training(engine):
            await world.judged(4)
            await world.until(lambda: _live(world, 1))
            await world.judged(4, version=1)
            await world.until(lambda: _live(world, 2))
            await world.until(lambda: _loaded(engine, lineage, {f"{lineage}-v2"}))
        rows = await world.database.fetch(
            "SELECT outcome, probe_max_diff FROM swaps ORDER BY to_version"
        )
        assert [row["outcome"] for row in rows] == ["loaded", "loaded"]
        assert max(row["probe_max_diff"] for row in rows) < 1e-3

        policy = await PolicyStore(world.database).live_of(world.lineage)
        checkpoint = await PolicyStore(world.database).checkpoint_of(world.lineage, 2)
        assert policy.uri is not None
        assert checkpoint is not None
        backend = TorchBackend(world.settings.model_directory, world.settings.trainer, "cpu")
        ids = tuple(range(40, 60))
        zero = PolicyRef(lineage_id=world.lineage, version=0, kind=PolicyKind.BASE)
        base = await engine.score(ids, 1, zero)
        ours = await engine.score(ids, 1, policy)
        assert backend.score([Probe(ids, 1)])[0] == pytest.approx(base, abs=1e-3)
        backend.load(Path(policy.uri), Path(checkpoint.partition("#")[0]))
        assert backend.score([Probe(ids, 1)])[0] == pytest.approx(ours, abs=1e-3)
        # Two steps moved it by far more than the tolerance of the proof.
        assert max(abs(a - b) for a, b in zip(ours, base, strict=True)) > 0.05

        request = Generation(
            rid=new_id().hex,
            input_ids=ids,
            sampling=Sampling(temperature=0.8, top_p=1.0, max_tokens=6),
            policy=policy,
        )
        cut = replace(request, rid=new_id().hex, kept=True, sampling=CUT)
        assert (await engine.status()).kept_most >= 8
        told = [chunk async for chunk in engine.generate(cut)]
        assert _among(backend, ids, told) == pytest.approx(
            [value for chunk in told for value in chunk.logprobs], abs=1e-3
        )
        chunks = [chunk async for chunk in engine.generate(request)]
        count = sum(len(chunk.ids) for chunk in chunks)
        finish = chunks[-1].finish
        assert finish is not None
        assert finish.spans == (VersionSpan(2, 0, count),)
    finally:
        policy = await PolicyStore(world.database).live_of(world.lineage)
        await engine.unload(policy)
        await engine.close()


@pytest.mark.parametrize("transfer", ["disk", "broadcast"])
async def test_whole_weights_are_replaced_under_a_running_reply(
    world: World, sglang_url: str, tiny_model: Path, transfer: str
) -> None:
    await world.database.execute("UPDATE lineages SET kind = 'full'")
    world.configure(
        optimizer={"lr": 1e-3}, publish={"transfer": transfer, "broadcast_timeout_s": 20}
    )
    ids = tuple(range(40, 60))
    engine = Talking(EngineSettings(name="real", url=sglang_url), ids)
    served = PolicyStore(world.database, str(tiny_model)).served
    pool = EnginePool([engine], served, movers=EngineMovers(world.database), poll_s=0.5)
    follower = asyncio.create_task(pool.follow())
    await world.database.listen("nextstate_policy", lambda _: pool.poke())
    base = PolicyRef(lineage_id=world.lineage, version=0, kind=PolicyKind.FULL, uri=str(tiny_model))
    try:
        await engine.restore(base)
        await world.judged(4)
        async with world.training(engine):
            await world.until(lambda: _live(world, 1))
            assert engine.reply is not None
            chunks = await engine.reply
        [swap] = await world.database.fetch("SELECT outcome, pause_ms, probe_max_diff FROM swaps")
        assert swap["outcome"] == "loaded"
        assert swap["pause_ms"] > 0
        assert swap["probe_max_diff"] < 1e-3

        # One reply, never restarted: each token was sampled by the weights that its span names.
        sampled = tuple(token for chunk in chunks for token in chunk.ids)
        logprobs = [value for chunk in chunks for value in chunk.logprobs]
        finish = chunks[-1].finish
        assert finish is not None
        before, after = finish.spans
        assert (before.version, after.version) == (0, 1)
        assert (before.start, before.end, after.end) == (0, after.start, len(sampled))
        live = await PolicyStore(world.database).live_of(world.lineage)
        # From here on nobody else may touch its weights: two updates at once end the server.
        await _stopped(follower)
        # A server names the directory that it has last read.
        async with aiohttp.ClientSession() as http, http.get(f"{sglang_url}/model_info") as info:
            read = (await info.json())["model_path"]
        assert (read == live.uri) is (transfer == "disk")
        now = await _scores(engine, live, ids, sampled)
        await engine.restore(base)
        then = await _scores(engine, base, ids, sampled)
        assert then[: before.end] == pytest.approx(logprobs[: before.end], abs=1e-3)
        assert now[after.start :] == pytest.approx(logprobs[after.start :], abs=1e-3)
        assert now[after.start :] != pytest.approx(then[after.start :], abs=1e-2)
    finally:
        await _stopped(follower)
        await engine.restore(base)
        await pool.close()


class Talking(SglangEngine):
    """Has one long reply under way, its first token sampled, when new weights are brought."""

    def __init__(self, settings: EngineSettings, prompt: tuple[int, ...]) -> None:
        super().__init__(settings)
        self._prompt = prompt
        self.reply: asyncio.Task[list[Chunk]] | None = None

    async def load(self, policy: PolicyRef) -> float:
        await self._begun(policy)
        return await super().load(policy)

    async def receive(
        self,
        policy: PolicyRef,
        group: Group,
        buckets: Sequence[Bucket],
        send: Callable[[int], Awaitable[None]],
    ) -> float:
        await self._begun(policy)
        return await super().receive(policy, group, buckets, send)

    async def _begun(self, policy: PolicyRef) -> None:
        if policy.version and self.reply is None:
            before, begun = replace_dataclass(policy, version=0, uri=None), asyncio.Event()
            self.reply = asyncio.create_task(self._talk(before, begun))
            await begun.wait()

    async def _talk(self, policy: PolicyRef, begun: asyncio.Event) -> list[Chunk]:
        chunks: list[Chunk] = []
        sampling = Sampling(temperature=1.0, max_tokens=1200, logit_bias={END: -100.0})
        request = Generation(
            rid=new_id().hex, input_ids=self._prompt, sampling=sampling, policy=policy
        )
        async for chunk in self.generate(request):
            chunks.append(chunk)
            begun.set()
        return chunks


async def _stopped(follower: asyncio.Task[None]) -> None:
    follower.cancel()
    with suppress(asyncio.CancelledError):
        await follower


#: Ends a reply, so it is never sampled.
END = 2


async def _scores(
    engine: SglangEngine, policy: PolicyRef, ids: tuple[int, ...], sampled: tuple[int, ...]
) -> list[float]:
    """What sampling gives that leaves `END` out: ln(p / (1 - p(END)))."""
    places = [[END]] * len(sampled)
    found = await engine.score_among((*ids, *sampled), len(ids), policy, places)
    ends = [row[0] for row in found.top_logprobs]
    return [one - math.log1p(-math.exp(end)) for one, end in zip(found.logprobs, ends, strict=True)]


async def _live(world: World, version: int) -> bool:
    return (await PolicyStore(world.database).live_of(world.lineage)).version == version


async def _loaded(engine: SglangEngine, lineage: str, expected: set[str]) -> bool:
    adapters = (await engine.status()).adapters
    return {name for name in adapters if name.startswith(lineage)} == expected
