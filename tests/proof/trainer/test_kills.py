"""Trainers killed by SIGKILL at named points: each sample is trained exactly once.

What was proved is kept in `build/proof/trainer/`, a file a point, and not proved again until the
code that it is about changes (see conftest).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from tests.proof.trainer.conftest import RECORDS, record_of
from tests.proof.trainer.points import POINTS
from tests.training import World, open_world

TURNS = 4


@pytest.fixture
async def world(
    database_url: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")
    async with open_world(database_url, tiny_model, tmp_path) as world:
        yield world


async def kill(world: World, tmp_path: Path, point: str) -> None:
    """Run a trainer until it dies at the point."""
    path = tmp_path / "settings.json"
    settings = world.settings.model_dump(mode="json")
    settings["database"]["url"] = world.settings.database_url  # a dump hides it
    path.write_text(json.dumps(settings))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.proof.trainer.victim", point, str(path),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    _, errors = await asyncio.wait_for(process.communicate(), 200)
    assert process.returncode == -signal.SIGKILL, errors.decode()


async def free(world: World) -> int:
    """Samples that the next leader may take; Postgres has to notice first that one is gone."""
    policies = PolicyStore(world.database)
    leadership = None

    async def led() -> bool:
        nonlocal leadership
        leadership = await policies.become_leader(world.lineage)
        return leadership is not None

    await world.until(led)
    assert leadership is not None
    found = len(await SampleStore(world.database).window(world.lineage, 9))
    await leadership.release()
    return found


async def settled(world: World, steps: int) -> bool:
    """So many steps were taken, and no candidate is on its way."""
    policies = await world.policies()
    done = await world.database.fetchval("SELECT count(*) FROM train_steps")
    return bool(done == steps and not any(state == "candidate" for _, state in policies))


@pytest.mark.parametrize("point", POINTS)
async def test_each_sample_is_trained_once(world: World, tmp_path: Path, point: str) -> None:
    turns = await world.judged(TURNS)
    await kill(world, tmp_path, point)
    rows = await world.database.fetch("SELECT to_version FROM train_steps")
    advanced = len(rows)
    assert advanced == (list(POINTS).index(point) >= list(POINTS).index("advanced"))
    assert await world.database.fetchval("SELECT count(*) FROM policies") == 1 + advanced
    # All or nothing: none is half consumed, and what was not trained can be taken again.
    assert await free(world) == (0 if advanced else TURNS)
    assert await world.steps_of_samples() == [advanced] * TURNS
    async with world.training():
        await world.until(lambda: settled(world, 1))
        turns += await world.judged(TURNS, version=await world.live())
        await world.until(lambda: settled(world, 2))
    assert await world.steps_of_samples() == [1] * 2 * TURNS
    assert await world.reasons() == dict.fromkeys(turns, "trained")
    assert [state for _, state in await world.policies()] == ["retired", "retired", "live"]
    live = await world.live()
    assert f"{world.lineage.hex}-v{live}" in world.engine.adapters
    left = [path.name for path in (tmp_path / "policies" / world.lineage.hex).iterdir()]
    assert not [name for name in left if name.startswith(".")]
    RECORDS.mkdir(parents=True, exist_ok=True)
    record = {"point": point, "advanced": advanced, "live": live}
    record_of(point).write_text(json.dumps(record))
