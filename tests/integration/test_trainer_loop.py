"""The training loop on a real Postgres: exactly once, whatever dies, and only proven versions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError, NonFinite, TrainerError
from gateway.records import FinishReason, VersionSpan
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.workers import Heartbeat
from tests.factories import next_state
from tests.torch_engine import TorchEngine
from tests.training import World, open_world
from trainer.backends.torch_backend import TorchBackend
from trainer.learner import Learner
from trainer.publish import Publisher
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


async def test_a_batch_becomes_the_live_version(world: World) -> None:
    turns = await world.judged(5)
    async with world.training():
        await world.until(lambda: _is(world.live, 1))
        assert await world.samples() == [("trained", None, 0)] * 4 + [("ready", None, None)]
        (adapter,) = world.engine.adapters
        assert adapter == f"{world.lineage.hex}-v1"
        assert await world.swaps() == [("torch-0", 1, "loaded")]
    verdicts = await world.database.fetch("SELECT turn_id, outcome, version FROM verdicts")
    assert {tuple(row) for row in verdicts} == {(turn, "trained", 1) for turn in turns[:4]}
    (step,) = await world.database.fetch("SELECT * FROM train_steps")
    assert (step["from_version"], step["to_version"], step["epoch"]) == (0, 1, 1)
    assert step["metrics"]["samples"] == 4
    assert step["metrics"]["score_mean"] == 0
    assert step["metrics"]["logprob_diff_mean"] > 0
    (difference,) = await world.database.fetch("SELECT probe_max_diff FROM swaps")
    assert difference["probe_max_diff"] < 1e-3


async def test_judged_turns_wake_it_up(world: World) -> None:
    patient = world.settings.trainer.model_copy(update={"poll_s": 300.0})
    world.settings = world.settings.model_copy(update={"trainer": patient})
    async with world.training():
        await world.until(lambda: _leads(world))
        await world.judged(4)
        await world.until(lambda: _is(world.live, 1))


async def test_a_judge_that_is_away_ends_no_training_of_what_was_judged(world: World) -> None:
    """Five turns that nobody judges are the whole window, until they have waited for too long."""
    await world.judged(4)
    for number in range(5):
        asked = await world.unjudged()
        await world.writer.commit(next_state(asked, arrived_at=1e9 - 10 + number))
    assert world.settings.window == 5
    world.configure(verdict_wait_s=2e9)  # Turns of these tests arrive in 2001.
    async with world.training():
        await world.until(lambda: _leads(world))
        await asyncio.sleep(0.5)
        assert await world.live() == 0
    world.configure(verdict_wait_s=600)
    async with world.training():
        await world.until(lambda: _is(world.live, 1))
    (step,) = await world.step_metrics()
    assert step["waiting"] == 0
    # They are not given up: their judge may come back.
    queued = "SELECT count(*) FROM judgements WHERE state = 'queued'"
    assert await world.database.fetchval(queued) == 5
    assert await world.database.fetchval("SELECT count(*) FROM verdicts") == 4


async def test_the_old_version_is_unloaded_once_no_gateway_uses_it(world: World) -> None:
    lineage, report = world.lineage.hex, {"in_flight": {}, "serving": {}}
    report["serving"] = {lineage: 1}
    report["in_flight"] = {lineage: {1: 2}}
    heartbeat = Heartbeat(world.database, "gateway", lambda: report, interval_s=0.05)
    async with heartbeat, world.training():
        await world.judged(4)
        await world.until(lambda: _is(world.live, 1))
        await world.judged(4, version=1)
        await world.until(lambda: _is(world.live, 2))
        report["serving"] = {lineage: 2}
        await asyncio.sleep(0.5)
        assert world.engine.unloaded == []
        report["in_flight"] = {lineage: {2: 7}}
        await world.until(lambda: _holds(world.engine.unloaded, [f"{lineage}-v1"]))
        assert set(world.engine.adapters) == {f"{lineage}-v2"}


async def test_what_must_not_be_trained_on_is_dropped_with_the_reason(world: World) -> None:
    world.settings = world.settings.model_copy(
        update={"freshness": world.settings.freshness.model_copy(update={"max_lag": 0})}
    )
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _is(world.live, 1))
        await world.judged(1, version=0)
        await world.judged(1, version=1, score=1.0, finish_reason=FinishReason.LENGTH)
        await world.judged(1, version=1, finish_reason=FinishReason.ABORT)
        await world.judged(1, version=1, sampled_ids=(100_000,), logprobs=(-1.0,), spans=SPAN)
        await world.judged(1, version=1, score=-1.0, finish_reason=FinishReason.LENGTH)
        await world.judged(3, version=1)
        await world.until(lambda: _is(world.live, 2))
    assert (await world.samples())[4:] == [
        ("dropped", "stale", 1),
        ("dropped", "truncated", 0),
        ("dropped", "aborted", 0),
        ("dropped", "id_outside_vocabulary", 0),
        *[("trained", None, 0)] * 4,
    ]
    dropped = await world.database.fetchval(
        "SELECT count(*) FROM verdicts WHERE outcome = 'dropped'"
    )
    assert dropped == 4


SPAN = (VersionSpan(version=1, start=0, end=1),)

#: Where a trainer dies: what is replaced, and whether it dies before or after doing it.
POINTS = [
    (SampleStore, "lease", "after"),
    (Learner, "train", "before"),
    (Learner, "train", "after"),
    (PolicyStore, "allocate_version", "after"),
    (Learner, "write", "after"),
    (PolicyStore, "advance", "before"),
    (PolicyStore, "advance", "after"),
    (Learner, "proof", "before"),
    (Publisher, "publish", "before"),
    (PolicyStore, "record_swap", "after"),
    (PolicyStore, "promote", "before"),
    (PolicyStore, "promote", "after"),
]


@pytest.mark.parametrize(("owner", "method", "when"), POINTS)
async def test_each_sample_is_trained_once_wherever_it_dies(
    world: World, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, when: str
) -> None:
    await world.judged(4)
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, _deadly(getattr(owner, method), when))
        stop = asyncio.Event()
        with pytest.raises(Killed):
            await asyncio.wait_for(run(world.settings, stop, (world.engine,)), 60)
    advanced = await world.database.fetchval("SELECT count(*) FROM train_steps")
    ready = await SampleStore(world.database).window(world.lineage, 9)
    if not advanced:
        # Leased by the dead leader's epoch, they are free as soon as another leads.
        leadership = await PolicyStore(world.database).become_leader(world.lineage)
        assert leadership is not None
        ready = await SampleStore(world.database).window(world.lineage, 9)
        await leadership.release()
    assert len(ready) == (0 if advanced else 4)
    async with world.training():
        await world.until(lambda: _published(world))
        await world.judged(4, version=await world.live())
        await world.until(lambda: _steps(world, 2))
        await world.until(lambda: _published(world))
    assert await world.steps_of_samples() == [1] * 8
    live = await world.live()
    states = await world.policies()
    assert [state for _, state in states] == ["retired", "retired", "live"]
    assert states[-1][0] == live
    assert world.engine.adapters.keys() >= {f"{world.lineage.hex}-v{live}"}


def _deadly(original: Callable[..., Any], when: str) -> Callable[..., Any]:
    if asyncio.iscoroutinefunction(original):

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            if when == "after":
                await original(*args, **kwargs)
            raise Killed

    else:

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if when == "after":
                original(*args, **kwargs)
            raise Killed

    return wrapped


async def test_a_corrupt_candidate_is_refused_and_the_live_version_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.judged(4)
    with monkeypatch.context() as patch:
        patch.setattr(PolicyStore, "advance", _deadly(PolicyStore.advance, "after"))
        with pytest.raises(Killed):
            await run(world.settings, asyncio.Event(), (world.engine,))
    candidate = await PolicyStore(world.database).candidate_of(world.lineage)
    assert candidate is not None
    assert candidate.uri is not None
    (Path(candidate.uri) / "adapter_model.safetensors").write_bytes(b"rotten")
    async with world.training():
        await world.until(lambda: _is(world.policies, [(0, "live"), (1, "refused")]))
        await world.judged(4)
        await world.until(lambda: _is(world.live, 2))
    assert await world.policies() == [(0, "retired"), (1, "refused"), (2, "live")]


async def test_an_engine_that_computes_something_else_refuses_the_version(world: World) -> None:
    world.engine.offset = 0.5
    await world.judged(4)
    async with world.training():
        await world.until(lambda: _is(world.policies, [(0, "live"), (1, "refused")]))
        assert await world.swaps() == [("torch-0", 1, "mismatch")]
        assert world.engine.adapters == {}
        world.engine.offset = 0.0
        await world.judged(4)
        await world.until(lambda: _is(world.live, 2))
    # The refused step is undone: version 2 comes from the base model, as its parent says.
    parent = await world.database.fetchval("SELECT parent_version FROM policies WHERE version = 2")
    assert parent == 0


async def test_a_dead_engine_never_blocks_a_version(world: World, tiny_model: Path) -> None:
    dead, slow = TorchEngine(tiny_model, "dead"), TorchEngine(tiny_model, "slow")
    dead.dead = slow.hang = True
    publish = world.settings.trainer.publish.model_copy(update={"load_timeout_s": 1.0})
    config = world.settings.trainer.model_copy(update={"publish": publish})
    world.settings = world.settings.model_copy(update={"trainer": config})
    await world.judged(4)
    async with world.training(dead, world.engine, slow):
        await world.until(lambda: _is(world.live, 1))
    assert sorted(await world.swaps()) == [
        ("dead", 1, "unreachable"),
        ("slow", 1, "unreachable"),
        ("torch-0", 1, "loaded"),
    ]


async def test_without_any_engine_the_candidate_waits(world: World) -> None:
    world.engine.dead = True
    await world.judged(4)
    async with world.training():
        await world.until(lambda: _is(world.policies, [(0, "live"), (1, "candidate")]))
        await asyncio.sleep(0.2)
        assert await world.live() == 0
        world.engine.dead = False
        await world.until(lambda: _is(world.live, 1))
    assert await world.swaps() == [("torch-0", 1, "loaded")]


async def test_a_leader_that_was_replaced_writes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another epoch begins while it trains; it leads again later and trains each sample once."""
    original, lost = Learner.train, []

    def train(self: Learner, *args: Any) -> Any:
        if not lost:
            lost.append(True)
            bump = "UPDATE lineages SET epoch = epoch + 1"
            asyncio.run_coroutine_threadsafe(world.database.execute(bump), loop).result(10)
        return original(self, *args)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Learner, "train", train)
    await world.judged(4)
    async with world.training():
        await world.until(lambda: _published(world))
    assert await world.steps_of_samples() == [1] * 4
    epochs = [row["epoch"] for row in await world.database.fetch("SELECT epoch FROM train_steps")]
    assert epochs == [3]


async def test_samples_that_break_a_step_are_dropped_and_it_stops_after_three(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise NonFinite("loss nan")

    monkeypatch.setattr(TorchBackend, "step", explode)
    await world.judged(12)
    with pytest.raises(TrainerError, match="3 steps in a row"):
        await asyncio.wait_for(run(world.settings, asyncio.Event(), (world.engine,)), 60)
    assert await world.samples() == [("dropped", "not_finite", 0)] * 12


async def test_a_full_disk_costs_no_sample(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = TorchBackend.save, itertools.count()

    def save(self: TorchBackend, directory: Path) -> None:
        if next(failures) == 0:
            raise OSError(28, "No space left on device")
        original(self, directory)

    monkeypatch.setattr(TorchBackend, "save", save)
    await world.judged(4)
    async with world.training():
        await world.until(lambda: _published(world))
    assert await world.steps_of_samples() == [1] * 4
    assert [version for version, _ in await world.policies()] == [0, 2]


async def test_stopping_in_mid_step_gives_the_samples_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = TorchBackend._tokens
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def tokens(self: TorchBackend, *given: Any) -> Any:
        loop.call_soon_threadsafe(stop.set)
        asyncio.run_coroutine_threadsafe(stop.wait(), loop).result(10)
        return original(self, *given)

    monkeypatch.setattr(TorchBackend, "_tokens", tokens)
    config = world.settings.trainer.model_copy(update={"micro_batch_tokens": 1})
    world.settings = world.settings.model_copy(update={"trainer": config})
    await world.judged(4)
    await asyncio.wait_for(run(world.settings, stop, (world.engine,)), 60)
    assert await world.samples() == [("ready", None, None)] * 4
    assert await world.policies() == [(0, "live")]


async def test_a_second_trainer_stands_by_and_takes_over(world: World) -> None:
    async with world.training():
        await world.until(lambda: _leads(world))
        async with world.training():
            await world.judged(4)
            await world.until(lambda: _is(world.live, 1))
    assert await world.steps_of_samples() == [1] * 4
    async with world.training():
        await world.judged(4, version=1)
        await world.until(lambda: _is(world.live, 2))


async def test_a_lineage_that_does_not_train_is_refused(world: World) -> None:
    await KeyStore(world.database).ensure_lineage("default", "tiny", trains=False)
    with pytest.raises(ConfigError, match="not to be trained"):
        await run(world.settings, asyncio.Event(), (world.engine,))


async def test_old_directories_are_pruned(world: World) -> None:
    publish = world.settings.trainer.publish.model_copy(update={"keep": 2})
    config = world.settings.trainer.model_copy(update={"publish": publish})
    world.settings = world.settings.model_copy(update={"trainer": config})
    async with world.training():
        for version in range(3):
            await world.judged(4, version=version)
            await world.until(lambda version=version: _is(world.live, version + 1))
    root = world.settings.trainer.directory / world.lineage.hex
    assert sorted(path.name.split("-")[0] for path in root.iterdir()) == ["v2", "v3"]


async def _is(read: Callable[[], Awaitable[object]], value: object) -> bool:
    return await read() == value


async def _holds(values: list[str], expected: list[str]) -> bool:
    return values == expected


async def _leads(world: World) -> bool:
    return bool(await world.database.fetchval("SELECT epoch FROM lineages"))


async def _published(world: World) -> bool:
    """Whether something was trained and the newest version is live."""
    newest = await world.database.fetchrow(
        "SELECT version, state FROM policies ORDER BY version DESC LIMIT 1"
    )
    return newest is not None and newest["version"] > 0 and newest["state"] == "live"


async def _steps(world: World, count: int) -> bool:
    return bool(await world.database.fetchval("SELECT count(*) FROM train_steps") == count)
