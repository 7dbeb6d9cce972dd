"""`nextstate train` under torchrun: two ranks of each back end, one that dies in mid-step."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.training import World, open_world


@pytest.fixture
async def world(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database_url, tiny_model, tmp_path) as world:
        world.configure(micro_batch_tokens=16, distributed={"timeout_s": 60.0, "beat_s": 0.2})
        yield world


@asynccontextmanager
async def torchrun(world: World, home: Path, *arguments: str) -> AsyncIterator[_Job]:
    path = home / "settings.json"
    settings = world.settings.model_dump(mode="json")
    settings["database"]["url"] = world.settings.database_url  # a dump hides it
    path.write_text(json.dumps(settings))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "-m", "tests.trainer_rank", str(path), *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NEXTSTATE_DEVICE": "cpu"},
    )  # fmt: skip
    job = _Job(process)
    try:
        yield job
    finally:
        if process.returncode is None:
            process.terminate()
            await job.ended()


class _Job:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdout is not None
        self._said = asyncio.create_task(process.stdout.read())

    async def brings(self, world: World, version: int) -> None:
        """Until a version is live; to start three processes with torch takes its time."""
        async with asyncio.timeout(240):
            while await world.live() != version:
                if self._said.done():
                    raise AssertionError((await self._said).decode())
                await asyncio.sleep(0.1)

    async def ended(self) -> tuple[int, str]:
        """The exit code, and what all its processes said."""
        async with asyncio.timeout(240):
            said = await self._said
            return await self._process.wait(), said.decode()


@pytest.mark.timeout(900)
async def test_a_rank_that_dies_in_mid_step_costs_no_sample(world: World, tmp_path: Path) -> None:
    turns = await world.judged(4)
    async with torchrun(world, tmp_path, "deadly") as job:
        code, said = await job.ended()
    assert code != 0
    assert "RankLost: " in said, said
    # Rank 0 gave the samples back itself: nobody else has led since.
    assert await world.samples() == [("ready", None, None)] * 4
    assert await world.database.fetchval("SELECT count(*) FROM train_steps") == 0
    async with torchrun(world, tmp_path) as job:
        for version in (1, 2):
            await job.brings(world, version)
            turns += await world.judged(4, version=version)
        await job.brings(world, 3)
    _, said = await job.ended()
    assert said.count('"trainer_stopped"') == 1, said
    assert await world.steps_of_samples() == [1] * 12
    assert await world.reasons() == dict.fromkeys(turns, "trained")
    # What two ranks wrote, one goes on from.
    async with world.training():
        turns += await world.judged(4, version=3)
        await world.until(lambda: _is_live(world, 4))
    assert await world.steps_of_samples() == [1] * 16


@pytest.mark.timeout(900)
async def test_megatron_trains_and_publishes_by_two_ranks(world: World, tmp_path: Path) -> None:
    """They share every matrix; an engine that knows no Megatron computes the same."""
    await world.database.execute("UPDATE lineages SET kind = 'full'")
    world.configure(backend="megatron", megatron={"tensor_parallel": 2}, optimizer={"lr": 1e-3})
    turns = await world.judged(4)
    async with torchrun(world, tmp_path) as job:
        await job.brings(world, 1)
        turns += await world.judged(4, version=1)
        await job.brings(world, 2)
    _, said = await job.ended()
    assert said.count('"trainer_stopped"') == 1, said
    assert await world.steps_of_samples() == [1] * 8
    assert await world.reasons() == dict.fromkeys(turns, "trained")
    assert [outcome for *_, outcome in await world.swaps()] == ["loaded"] * 2


async def _is_live(world: World, version: int) -> bool:
    return await world.live() == version
