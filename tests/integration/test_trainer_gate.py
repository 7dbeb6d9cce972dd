"""Gates on a real Postgres: canaries, rollbacks, and what becomes of the samples."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import torch
from safetensors.torch import load_file

from gateway.errors import Conflict
from gateway.records import FinishReason
from gateway.store.keys import KeyStore
from gateway.store.moves import PolicyMoves
from gateway.store.policies import PolicyStore
from gateway.store.workers import Heartbeat
from tests.training import World, open_world
from trainer.service import run


class Killed(BaseException):
    """The process is gone: nothing after this line runs."""


@pytest.fixture
async def world(
    database_url: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")
    async with open_world(database_url, tiny_model, tmp_path) as world:
        yield world


def gated(world: World, **gate: Any) -> None:
    """Set the gate, impatient."""
    publish = world.settings.trainer.publish
    chosen = publish.gate.model_copy(update={"look_s": 0.05, "share": 0.5, **gate})
    config = world.settings.trainer.model_copy(
        update={"publish": publish.model_copy(update={"gate": chosen})}
    )
    world.settings = world.settings.model_copy(update={"trainer": config})


async def fared(world: World, version: int, score: float, count: int = 40) -> list[UUID]:
    """Turns of a version that are judged and cannot be trained on."""
    return await world.judged(
        count, version, score, trainable=False, untrainable_reason="temperature_zero"
    )


async def test_a_regression_is_rolled_back_by_itself(world: World) -> None:
    gated(world)
    await fared(world, 0, 1.0)
    lineage = world.lineage.hex
    report: dict[str, Any] = {"serving": {lineage: 1}}
    heartbeat = Heartbeat(world.database, "gateway", lambda: report, interval_s=0.05)
    async with heartbeat, world.training():
        turns = await world.judged(4)
        await world.until(lambda: _is(world.live, 1))
        await fared(world, 1, -1.0)
        await world.until(lambda: _is(world.policies, [(0, "live"), (1, "rolled_back")]))
        # What it sampled and somebody judges only now is nothing that version 0 ever said.
        (late,) = await world.judged(1, version=1)
        report["serving"] = {lineage: 0}
        await world.until(lambda: _is(_loaded(world), set()))
        await world.judged(4)
        await world.until(lambda: _is(world.live, 2))
    states = await world.samples()
    assert states[:4] == [("dropped", "quarantined", 0)] * 4
    assert states[4] == ("dropped", "rolled_back", None)
    assert states[5:] == [("trained", None, 0)] * 4
    rows = await world.database.fetch(
        "SELECT outcome, reason, version FROM verdicts WHERE turn_id = ANY($1::uuid[])", turns
    )
    assert [tuple(row) for row in rows] == [("dropped", "quarantined", 1)] * 4
    verdict = await world.database.fetchrow("SELECT * FROM verdicts WHERE turn_id = $1", late)
    assert verdict is not None
    assert (verdict["outcome"], verdict["reason"]) == ("dropped", "rolled_back")
    detail = await world.database.fetchval("SELECT detail FROM events WHERE name = 'rolled_back'")
    assert (detail["version"], detail["live"], detail["undone"]) == (1, 0, [1])
    assert detail["quarantined"] == 4
    # 42 of the 44 turns of version 0 were liked: -1 - (42 - 2) / 44.
    assert detail["reason"] == "the mean score changed by -1.91"
    policy = await world.database.fetchrow("SELECT * FROM policies WHERE version = 1")
    assert policy is not None
    assert policy["reason"] == detail["reason"]
    assert (policy["gate"]["state"], policy["gate"]["anchor"]) == ("fail", 0)
    parent = await world.database.fetchval("SELECT parent_version FROM policies WHERE version = 2")
    assert parent == 0


async def test_a_version_is_compared_with_the_newest_turns_of_the_one_before(world: World) -> None:
    gated(world, baseline_turns=40)
    # What was disliked long ago, and cut off, is nothing to be better than.
    await world.judged(
        60, 0, -1.0, trainable=False, untrainable_reason="temperature_zero",
        finish_reason=FinishReason.LENGTH,
    )  # fmt: skip
    await fared(world, 0, 1.0)
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _is(world.live, 1))
        await fared(world, 1, -1.0)
        await world.until(lambda: _is(world.policies, [(0, "live"), (1, "rolled_back")]))
    detail = await world.database.fetchval("SELECT detail FROM events WHERE name = 'rolled_back'")
    # Of the newest 40 turns of version 0, two were disliked: -1 - (38 - 2) / 40.
    assert detail["reason"] == "the mean score changed by -1.9"
    gate = await world.database.fetchval("SELECT gate FROM policies WHERE version = 1")
    assert gate["error_change"] == 0


async def test_after_a_rollback_training_goes_on_from_the_version_before_and_its_optimizer(
    world: World,
) -> None:
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _is(world.live, 1))
        await world.judged(4, version=1)
        await world.until(lambda: _is(world.live, 2))
        moved = await PolicyMoves(world.database).rollback(world.lineage, reason="rude")
        assert (moved.live_version, moved.undone, moved.quarantined) == (1, [2], 4)
        # Equal turns: with the moments and baseline of version 1 they make version 2 again.
        await world.judged(4, version=1)
        await world.until(lambda: _is(world.live, 3))
    undone, again, first = [await _weights(world, version) for version in (2, 3, 1)]
    for name, tensor in undone.items():
        torch.testing.assert_close(again[name], tensor, rtol=1e-5, atol=1e-7)
    assert any((undone[name] - first[name]).abs().max() > 1e-3 for name in undone)
    assert await world.policies() == [
        (0, "retired"), (1, "retired"), (2, "rolled_back"), (3, "live"),
    ]  # fmt: skip


async def test_lag_is_counted_along_the_ancestry(world: World) -> None:
    freshness = world.settings.freshness.model_copy(update={"max_lag": 1})
    world.settings = world.settings.model_copy(update={"freshness": freshness})
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _is(world.live, 1))
        await world.judged(4, version=1)
        await world.until(lambda: _is(world.live, 2))
        await PolicyMoves(world.database).rollback(world.lineage, reason="rude")
        await world.judged(4, version=1)
        await world.until(lambda: _is(world.live, 3))
        # Version 3 comes from 1, one step away, and 0 is two.
        await world.judged(1, version=0)
        await world.judged(4, version=1)
        await world.until(lambda: _is(world.live, 4))
    assert (await world.samples())[-5:] == [("dropped", "stale", 3)] + [("trained", None, 1)] * 4


async def test_a_step_under_way_names_nothing_that_comes_from_what_was_undone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = PolicyStore.allocate_version

    async def allocate(self: PolicyStore, lineage_id: UUID, epoch: int) -> int:
        if await world.live() == 1:
            await PolicyMoves(world.database).rollback(world.lineage, 1, reason="rude")
        return await original(self, lineage_id, epoch)

    monkeypatch.setattr(PolicyStore, "allocate_version", allocate)
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _is(world.live, 1))
        await world.judged(4, version=0)
        await world.until(lambda: _is(world.live, 2))
    rows = await world.database.fetch("SELECT version, parent_version FROM policies ORDER BY 1")
    assert [tuple(row) for row in rows] == [(0, None), (1, 0), (2, 0)]


async def test_a_canary_is_promoted_once_it_is_shown_to_be_no_worse(world: World) -> None:
    gated(world, mode="canary")
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _is(world.policies, [(0, "live"), (1, "canary")]))
        served = (await PolicyStore(world.database).served())[world.lineage]
        assert served.canary is not None
        assert (served.live.version, served.canary.version, served.share) == (0, 1, 0.5)
        assert set(world.engine.adapters) == {f"{world.lineage.hex}-v1"}
        # It holds one unpromoted version: nothing is trained on meanwhile, nor lost.
        await world.judged(4)
        await fared(world, 0, -1.0)
        await fared(world, 1, 1.0)
        await world.until(lambda: _is(world.live, 1))
        await world.until(lambda: _is(world.policies, [(0, "retired"), (1, "live"), (2, "canary")]))
    assert await world.samples() == [("trained", None, 0)] * 4 + [("trained", None, 1)] * 4
    gate = await world.database.fetchval("SELECT gate FROM policies WHERE version = 1")
    assert gate["state"] == "pass"
    assert gate["score_change"] > 1.5


async def test_a_canary_that_is_worse_is_taken_back_and_was_never_live(world: World) -> None:
    gated(world, mode="canary")
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _is(world.policies, [(0, "live"), (1, "canary")]))
        await fared(world, 0, 1.0)
        assert await world.live() == 0
        await fared(world, 1, -1.0)
        await world.until(lambda: _is(world.policies, [(0, "live"), (1, "rolled_back")]))
        await world.until(lambda: _is(_loaded(world), set()))
        await world.judged(4)
        await world.until(
            lambda: _is(world.policies, [(0, "live"), (1, "rolled_back"), (2, "canary")])
        )
    assert await world.samples() == [("dropped", "quarantined", 0)] * 4 + [("trained", None, 0)] * 4
    served = (await PolicyStore(world.database).served())[world.lineage]
    assert served.canary is not None
    assert (served.canary.version, served.undone) == (2, frozenset({1}))


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_canary_outlives_its_trainer(
    world: World, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    gated(world, mode="canary")
    await world.judged(4)
    original = PolicyStore.try_out

    async def deadly(*args: Any) -> None:
        if when == "after":
            await original(*args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PolicyStore, "try_out", deadly)
        with pytest.raises(Killed):
            await asyncio.wait_for(run(world.settings, asyncio.Event(), (world.engine,)), 60)
    state = "canary" if when == "after" else "candidate"
    assert await world.policies() == [(0, "live"), (1, state)]
    async with world.training():
        await world.until(lambda: _is(_state(world, 1), "canary"))
        await fared(world, 0, -1.0)
        await fared(world, 1, 1.0)
        await world.until(lambda: _is(world.policies, [(0, "retired"), (1, "live")]))
    assert await world.steps_of_samples() == [1] * 4


async def test_nothing_is_promoted_or_rolled_back_while_a_version_is_pinned(world: World) -> None:
    gated(world)
    moves = PolicyMoves(world.database)
    await fared(world, 0, 1.0)
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _is(world.live, 1))
        assert (await moves.pin(world.lineage, 1, reason="exam")).changed
        assert not (await moves.pin(world.lineage, 1, reason="exam")).changed
        await world.judged(4, version=1)
        await world.until(lambda: _is(_state(world, 2), "candidate"))
        await fared(world, 1, -1.0)
        with pytest.raises(Conflict, match="pinned"):
            await moves.rollback(world.lineage, reason="rude")
        assert await world.live() == 1
        await moves.unpin(world.lineage)
        await world.until(lambda: _is(_state(world, 1), "rolled_back"))
    assert await world.live() == 0
    # Its child came of it.
    assert await _state(world, 2) == "rolled_back"


async def test_a_step_that_went_too_far_is_refused_before_anybody_sees_it(world: World) -> None:
    loss = world.settings.trainer.loss.model_copy(update={"max_step_kl": 10.0})
    config = world.settings.trainer.model_copy(update={"loss": loss})
    world.settings = world.settings.model_copy(update={"trainer": config})
    gated(world, max_kl=1e-6)
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _is(_state(world, 1), "refused"))
        assert world.engine.adapters == {}
    reason = await world.database.fetchval("SELECT reason FROM policies WHERE version = 1")
    assert reason.startswith("step_kl is ")
    assert await world.live() == 0


async def test_lineages_have_versions_gates_and_rollbacks_of_their_own(world: World) -> None:
    gated(world)
    other = await KeyStore(world.database).ensure_lineage("other", "tiny")
    config = world.settings.trainer.model_copy(update={"lineages": ("default", "other")})
    world.settings = world.settings.model_copy(update={"trainer": config})
    ours = world.lineage

    async def lives() -> dict[UUID, int]:
        live = await PolicyStore(world.database).live()
        return {lineage: policy.version for lineage, policy in live.items()}

    await fared(world, 0, 1.0)
    async with world.training():
        for lineage in (other, ours):
            world.lineage = lineage
            await world.judged(4)
        await world.until(lambda: _is(lives, {ours: 1, other: 1}))
        await fared(world, 1, -1.0)
        await world.until(lambda: _is(lives, {ours: 0, other: 1}))
        world.lineage = other
        await world.judged(4, version=1)
        await world.until(lambda: _is(lives, {ours: 0, other: 2}))
        names = {f"{other.hex}-v2", f"{other.hex}-v1"}
        assert f"{other.hex}-v2" in world.engine.adapters
        assert not {name for name in world.engine.adapters if other.hex in name} - names
    rows = await world.database.fetch(
        "SELECT version, state FROM policies WHERE lineage_id = $1 ORDER BY version", other
    )
    assert [tuple(row) for row in rows] == [(0, "retired"), (1, "retired"), (2, "live")]
    quarantined = await world.database.fetch(
        "SELECT DISTINCT lineage_id FROM samples WHERE reason = 'quarantined'"
    )
    assert [row["lineage_id"] for row in quarantined] == [ours]


async def _is(read: Callable[[], Awaitable[object]] | Awaitable[object], value: object) -> bool:
    return await (read() if callable(read) else read) == value


async def _loaded(world: World) -> set[str]:
    return set(world.engine.adapters)


async def _state(world: World, version: int) -> str | None:
    found: str | None = await world.database.fetchval(
        "SELECT state FROM policies WHERE version = $1", version
    )
    return found


async def _weights(world: World, version: int) -> dict[str, torch.Tensor]:
    uri = await world.database.fetchval("SELECT uri FROM policies WHERE version = $1", version)
    return load_file(Path(uri) / "adapter_model.safetensors")
