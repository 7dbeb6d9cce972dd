"""A trainer takes nothing up while its lineage is paused, and goes on at once when it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.pauses import Paused, PauseFollower
from tests.training import World, open_world


@pytest.fixture
async def world(
    database_url: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")
    async with open_world(database_url, tiny_model, tmp_path) as world:
        yield world


async def test_a_trainer_waits_while_its_lineage_is_paused(world: World) -> None:
    follower = PauseFollower(world.database)
    await world.database.execute(
        "INSERT INTO settings (name, value) VALUES ('pauses', $1)",
        {"training": {world.lineage.hex: {"since": 1.0, "reason": "", "by": ""}}},
    )
    await follower.refresh()
    assert follower.is_paused(Paused.TRAINING, world.lineage)
    await world.judged(4)
    async with world.training():
        await world.until(lambda: _reports(world, paused=True))
        assert await world.samples() == [("ready", None, None)] * 4
        await world.database.execute("DELETE FROM settings")
        await world.database.execute("SELECT pg_notify('nextstate_settings', 'pauses')")
        await world.until(lambda: _trained(world))


async def _reports(world: World, *, paused: bool) -> bool:
    found = await world.database.fetchval(
        "SELECT detail -> 'lineages' -> $1 -> 'paused' FROM workers WHERE kind = 'trainer'",
        world.lineage.hex,
    )
    return found is paused


async def _trained(world: World) -> bool:
    return [one[0] for one in await world.samples()] == ["trained"] * 4
