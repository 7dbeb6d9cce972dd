"""What breaks in the middle of a swap: each time one definite version is live, and served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.errors import EngineRejected, EngineUnavailable
from gateway.records import PolicyKind, PolicyRef
from gateway.store.moves import PolicyMoves
from gateway.store.policies import PolicyStore
from tests.torch_engine import TorchEngine
from tests.training import World, open_world


@pytest.fixture
async def world(
    database_url: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")
    async with open_world(database_url, tiny_model, tmp_path) as world:
        yield world


class DiesAfterLoading(TorchEngine):
    """Gone with what it had loaded, each of the first `times`; then somebody starts it again."""

    times = 1

    async def load(self, policy: PolicyRef) -> float:
        took = await super().load(policy)
        if self.times:
            self.times -= 1
            self.adapters.clear()
            raise EngineUnavailable("connection reset", engine=self.name)
        return took


class DiesScoring(TorchEngine):
    times = 1

    async def score(self, ids: Sequence[int], start: int, policy: PolicyRef) -> list[float]:
        if self.times:
            self.times -= 1
            self.adapters.clear()
            raise EngineUnavailable("connection reset", engine=self.name)
        return await super().score(ids, start, policy)


class Liar(TorchEngine):
    """Says that it has loaded whatever it was told to, and answers with the base model."""

    async def load(self, policy: PolicyRef) -> float:
        self.adapters[policy.adapter or ""] = self._base
        return 1.0


class FullDisk(TorchEngine):
    async def load(self, policy: PolicyRef) -> float:
        raise EngineRejected("No space left on device", engine=self.name)


async def definite(world: World, *engines: TorchEngine) -> int:
    """The one version that Postgres says is live, which each engine has."""
    rows = await world.database.fetch(
        "SELECT p.version, p.kind, l.live_version FROM policies p"
        " JOIN lineages l ON l.id = p.lineage_id WHERE p.state = 'live'"
    )
    assert len(rows) == 1
    version: int = rows[0]["version"]
    assert rows[0]["live_version"] == version
    for engine in engines:
        loaded = set(engine.adapters)
        assert rows[0]["kind"] == PolicyKind.BASE or f"{world.lineage.hex}-v{version}" in loaded
    return version


@pytest.mark.parametrize("kind", [DiesAfterLoading, DiesScoring])
async def test_the_only_engine_dies_during_the_update_and_comes_back(
    world: World, tiny_model: Path, kind: type[TorchEngine]
) -> None:
    engine = kind(tiny_model)
    await world.judged(4)
    async with world.training(engine):
        await world.until(lambda: _live(world, 1))
    assert await definite(world, engine) == 1
    assert await world.swaps() == [("torch-0", 1, "loaded")]
    assert await world.steps_of_samples() == [1] * 4


@pytest.mark.parametrize("kind", [DiesAfterLoading, DiesScoring])
async def test_one_of_two_dies_during_the_update(
    world: World, tiny_model: Path, kind: type[TorchEngine]
) -> None:
    dying = kind(tiny_model, "dying")
    await world.judged(4)
    async with world.training(dying, world.engine):
        await world.until(lambda: _live(world, 1))
    assert await definite(world, world.engine) == 1
    assert sorted(await world.swaps()) == [("dying", 1, "unreachable"), ("torch-0", 1, "loaded")]


@pytest.mark.parametrize(("kind", "outcome"), [(Liar, "mismatch"), (FullDisk, "rejected")])
async def test_an_engine_that_lies_or_cannot_load_makes_no_other_serve_the_version(
    world: World, tiny_model: Path, kind: type[TorchEngine], outcome: str
) -> None:
    other = kind(tiny_model, "other")
    await world.judged(4)
    async with world.training(other, world.engine):
        await world.until(lambda: _state(world, 1, "refused"))
        await world.until(lambda: _empty(other, world.engine))
    assert await definite(world, world.engine) == 0
    assert sorted(await world.swaps()) == [("other", 1, outcome), ("torch-0", 1, "loaded")]
    served = (await PolicyStore(world.database).served())[world.lineage]
    assert served.undone == frozenset({1})


async def test_an_engine_that_died_after_the_update_gets_the_next_version(world: World) -> None:
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _live(world, 1))
        world.engine.adapters.clear()
        await world.judged(4, version=1)
        await world.until(lambda: _live(world, 2))
    assert await definite(world, world.engine) == 2


async def test_a_rollback_while_no_trainer_runs_is_where_the_next_one_begins(world: World) -> None:
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _live(world, 1))
        await world.judged(4, version=1)
        await world.until(lambda: _live(world, 2))
    moved = await PolicyMoves(world.database).rollback(world.lineage, reason="rude")
    assert (moved.live_version, moved.undone) == (1, [2])
    async with world.training():
        await world.judged(4, version=1)
        await world.until(lambda: _live(world, 3))
        await world.until(lambda: _gone(world, 2))
    assert await definite(world, world.engine) == 3
    parent = await world.database.fetchval("SELECT parent_version FROM policies WHERE version = 3")
    assert parent == 1


async def test_a_version_that_was_rolled_back_is_no_step_that_a_token_is_behind(
    world: World,
) -> None:
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _live(world, 1))
        await world.judged(4, version=1)
        await world.until(lambda: _live(world, 2))
    await PolicyMoves(world.database).rollback(world.lineage, reason="rude")
    async with world.training():
        await world.judged(4, version=1)
        await world.until(lambda: _live(world, 3))
        await world.judged(4, version=1)
        await world.until(lambda: _live(world, 4))
    # 3 comes from 1: one step lies between them, for samples as for each of their tokens.
    steps = await world.step_metrics()
    assert [(step["lag_mean"], step["lag_token_mean"]) for step in steps[-2:]] == [(0, 0), (1, 1)]


async def test_a_version_whose_files_are_not_what_was_written_is_not_trained_on(
    world: World,
) -> None:
    """Nobody goes on from weights that nobody wrote: what they came from is live, and trained."""
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _live(world, 1))
        await world.judged(4, version=1)
        await world.until(lambda: _live(world, 2))
    uri = await world.database.fetchval("SELECT uri FROM policies WHERE version = 1")
    weights = Path(uri) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"rotten!!")
    moves = PolicyMoves(world.database)
    await moves.rollback(world.lineage, reason="rude")
    await moves.pin(world.lineage, 1, reason="liked")
    async with world.training():
        await world.until(lambda: _contended(world, 6))
        assert await definite(world) == 1, "it is pinned: the trainer waits"
        await moves.unpin(world.lineage)
        await world.judged(4)
        await world.until(lambda: _live(world, 3))
    assert await definite(world, world.engine) == 3
    assert await world.policies() == [
        (0, "retired"), (1, "rolled_back"), (2, "rolled_back"), (3, "live"),
    ]  # fmt: skip
    row = await world.database.fetchrow(
        "SELECT parent_version, (SELECT reason FROM policies WHERE version = 1) AS reason"
        " FROM policies WHERE version = 3"
    )
    assert row["parent_version"] == 0
    assert row["reason"].endswith("adapter_model.safetensors has changed")


async def _contended(world: World, epoch: int) -> bool:
    """Each try to lead begins an epoch."""
    found: int = await world.database.fetchval("SELECT epoch FROM lineages")
    return found >= epoch


async def _live(world: World, version: int) -> bool:
    return await world.live() == version


async def _state(world: World, version: int, state: str) -> bool:
    return (version, state) in await world.policies()


async def _empty(*engines: TorchEngine) -> bool:
    return not any(engine.adapters for engine in engines)


async def _gone(world: World, version: int) -> bool:
    return f"{world.lineage.hex}-v{version}" not in world.engine.adapters
