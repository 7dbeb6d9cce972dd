"""What the trainer writes is what the real SGLang serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config import EngineSettings
from gateway.engine.sglang import SglangEngine
from gateway.records import Generation, PolicyKind, PolicyRef, Sampling, VersionSpan, new_id
from gateway.store.policies import PolicyStore
from tests.training import World, open_world
from trainer.backends.base import Probe
from trainer.backends.torch_backend import TorchBackend

pytestmark = pytest.mark.sglang


@pytest.fixture
async def world(
    database_url: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")
    async with open_world(database_url, tiny_model, tmp_path) as world:
        yield world


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
        chunks = [chunk async for chunk in engine.generate(request)]
        count = sum(len(chunk.ids) for chunk in chunks)
        finish = chunks[-1].finish
        assert finish is not None
        assert finish.spans == (VersionSpan(2, 0, count),)
    finally:
        policy = await PolicyStore(world.database).live_of(world.lineage)
        await engine.unload(policy)
        await engine.close()


async def _live(world: World, version: int) -> bool:
    return (await PolicyStore(world.database).live_of(world.lineage)).version == version


async def _loaded(engine: SglangEngine, lineage: str, expected: set[str]) -> bool:
    adapters = (await engine.status()).adapters
    return {name for name in adapters if name.startswith(lineage)} == expected
