"""Whole weights are replaced engine by engine under load; whatever breaks, one version serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from gateway.engine.whole_weights import IN_DOUBT
from gateway.records import VersionSpan
from gateway.store.moves import PolicyMoves
from tests.fakes import FakeSglang
from tests.whole_weights import TOKENS, Town, town


@pytest.fixture
async def world(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Town]:
    async with town(database_url, tiny_model, tmp_path) as world:
        yield world


def whole(world: Town) -> None:
    """No reply was cut or restarted, and each token's version is told."""
    for ids, finish in world.replies:
        assert len(ids) == TOKENS
        assert finish.detail is None
        ends = [span.end for span in finish.spans]
        assert [span.start for span in finish.spans] == [0, *ends[:-1]]
        assert ends[-1] == TOKENS


async def test_engines_are_replaced_one_after_the_other_under_load(world: Town) -> None:
    policy = await world.candidate()
    for fake in world.fakes:
        fake.faults.update_delay_s = 0.1
    async with world.talking():
        done = await world.publish(policy)
        assert done.outcome == "published"
        await world.serves(1)
    whole(world)
    assert {fake.weights for fake in world.fakes} == {policy.uri}
    assert await world.swaps() == [("one", "loaded"), ("two", "loaded")]
    first, second = done.swaps
    assert first.ended_at <= second.started_at
    assert first.pause_ms is not None
    assert 100 <= first.pause_ms <= 1e3 * (first.ended_at - first.started_at)
    # Replies that ran meanwhile are of both versions, in their order.
    versions = {tuple(span.version for span in finish.spans) for _, finish in world.replies}
    assert versions == {(0,), (0, 1), (1,)}


async def test_new_requests_go_elsewhere_or_wait_while_weights_are_replaced(world: Town) -> None:
    one, two = world.fakes
    async with world.movers.turn("one", 1) as mine:
        assert mine
        await world.until(lambda: chosen(world) == {"two"})
        async with world.movers.turn("two", 1):
            await world.until(lambda: world.pool._moving == {"one", "two"})
            asked = len(one.requests) + len(two.requests)
            waits = asyncio.create_task(world.reply())
            done, _ = await asyncio.wait([waits], timeout=0.3)
            assert not done
            assert len(one.requests) + len(two.requests) == asked, "it waits at the gateway"
        ids, _ = await waits
        assert len(ids) == TOKENS
        assert len(two.requests) > 0
    await world.until(lambda: chosen(world) == {"one", "two"})


def chosen(world: Town) -> set[str]:
    return {world.pool.choose(world.lineage, f"session {n}")[0].name for n in range(40)}


async def test_two_never_replace_the_weights_of_one_engine(world: Town) -> None:
    async with world.movers.turn("one") as mine, world.movers.turn("one") as other:
        assert (mine, other) == (True, False)
        assert await world.movers.under_way(["one", "two"]) == {"one"}
    assert await world.movers.under_way(["one", "two"]) == frozenset()
    async with world.movers.turn("one") as again:
        assert again


async def test_an_engine_that_lies_has_every_engine_put_back(world: Town) -> None:
    """The second says that it has the version, and computes what it did before."""
    base, policy = str(world.model), await world.candidate()
    world.fakes[1].faults.lie = True
    async with world.talking():
        done = await world.publish(policy)
        world.fakes[1].faults.lie = False
        await world.serves(0)
    whole(world)
    assert (done.outcome, "mismatch by two" in (done.reason or "")) == ("refused", True)
    assert [fake.weights for fake in world.fakes] == [base, base]
    assert [fake.told_version for fake in world.fakes] == [f"{world.lineage.hex}-v0"] * 2
    assert await world.states() == [(0, "live"), (1, "refused")]
    # Nothing is left of it, and the next version goes live.
    assert (await world.publish(await world.candidate())).outcome == "published"
    await world.serves(2)


@pytest.mark.parametrize("times", [1, 2])
async def test_weights_that_are_wrong_where_no_probe_looks_are_refused(
    world: Town, times: int
) -> None:
    """The checksum is not that of the engine before it; nor is what is put back, the second time.

    What was put back wrong says no version, and is replaced again by a gateway.
    """
    policy = await world.candidate()
    world.fakes[1].faults.rotten_updates = times
    done = await world.publish(policy)
    assert (done.outcome, done.reason) == (
        "refused",
        "mismatch by two: the checksum of its weights is not that of one",
    )
    await world.until(lambda: not world.fakes[1].rotten)
    await world.serves(0)
    assert [fake.weights for fake in world.fakes] == [str(world.model)] * 2
    assert world.fakes[1].faults.rotten_updates == 0


async def test_without_checksums_the_probe_decides(world: Town) -> None:
    for fake in world.fakes:
        fake.faults.no_checksum = True
    assert (await world.publish(await world.candidate())).outcome == "published"
    await world.serves(1)


@pytest.mark.parametrize("words", ["No space left on device", "Failed to update weights"])
async def test_weights_that_an_engine_refuses_are_not_believed_to_be_unchanged(
    world: Town, words: str
) -> None:
    policy = await world.candidate()
    world.fakes[0].faults.refuse_update = words
    publishing = asyncio.create_task(world.publish(policy))
    await world.until(lambda: world.fakes[0].told_version == IN_DOUBT)
    world.fakes[0].faults.refuse_update = None
    done = await publishing
    assert (done.outcome, done.reason) == ("refused", f"rejected by one: {words}")
    await world.serves(0)
    assert [fake.weights for fake in world.fakes] == [str(world.model)] * 2
    assert await world.swaps() == [("one", "rejected")], "the second was not touched"


async def test_files_that_are_not_what_was_written_reach_no_engine(world: Town) -> None:
    policy = await world.candidate()
    assert policy.uri is not None
    weights = Path(policy.uri) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"rotten!!")
    async with world.talking():
        done = await world.publish(policy)
    assert done.outcome == "refused"
    assert "model.safetensors has changed" in (done.reason or "")
    assert {fake.told_version for fake in world.fakes} == {"default"}
    assert await world.swaps() == []
    await world.serves(0)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_engine_that_dies_of_an_update_holds_up_no_other(world: Town, when: str) -> None:
    one = world.fakes[0]
    policy = await world.candidate()
    one.faults.die_at_update = when  # type: ignore[assignment]
    done = await world.publish(policy)
    assert done.outcome == "published"
    assert [swap.outcome for swap in done.swaps] == ["unreachable", "loaded"]
    await world.serves(1, "two")
    await world.until(lambda: chosen(world) == {"two"})
    # Started again it serves nothing before it has the live version.
    await one.restart()
    one.weights = str(world.model)
    seen = len(one.requests)
    await world.serves(1)
    assert one.weights == policy.uri
    assert one.requests[seen:] == []
    await world.until(lambda: chosen(world) == {"one", "two"})


async def test_every_engine_may_be_away_and_the_candidate_waits(world: Town) -> None:
    policy = await world.candidate()
    for fake in world.fakes:
        await fake.stop()
    assert (await world.publish(policy)).outcome == "unreachable"
    assert await world.states() == [(0, "live"), (1, "candidate")]
    for fake in world.fakes:
        await fake.restart()
    assert (await world.publish(policy)).outcome == "published"
    await world.serves(1)


async def test_an_engine_that_was_left_paused_goes_on(world: Town) -> None:
    """Its trainer died between the pause and the update, and no other leads."""
    await raw(world.fakes[0], "pause_generation", mode="retract")
    ids, finish = await world.reply()
    assert (len(ids), finish.spans) == (TOKENS, (VersionSpan(0, 0, TOKENS),))
    await world.until(lambda: world.fakes[0].pause is None)


async def test_weights_that_nobody_has_proved_are_taken_back(world: Town) -> None:
    """Its trainer died after the update and before the proof."""
    policy = await world.candidate()
    await raw(
        world.fakes[0],
        "update_weights_from_disk",
        model_path=policy.uri,
        weight_version=f"{world.lineage.hex}-v1",
    )
    await world.until(lambda: world.fakes[0].weights == str(world.model))
    await world.serves(0)


async def test_weights_that_came_in_part_are_replaced_by_the_live_ones(world: Town) -> None:
    """Its trainer died in the middle of a broadcast."""
    world.fakes[0].weights = "half of one, half of another"
    await raw(world.fakes[0], "update_weight_version", new_version=IN_DOUBT)
    await world.until(lambda: world.fakes[0].weights == str(world.model))
    await world.serves(0)


async def test_weights_that_were_proved_serve_until_the_next_trainer_goes_on(world: Town) -> None:
    """The trainer died between two engines: each serves one version, and Postgres says which."""
    policy, (one, two) = await world.candidate(), world.fakes
    replacement = world.publisher._replacement
    replacement._engines = replacement._engines[:1]
    live = await world.policies.live_of(world.lineage)
    await replacement.bring(policy, live, world.proof(policy))
    await world.serves(1, "one")
    await world.serves(0, "two")
    # What is live is preferred, and nothing moves either engine.
    await world.until(lambda: chosen(world) == {"two"})
    await asyncio.sleep(0.4)
    assert (one.weights, two.weights) == (policy.uri, str(world.model))
    replacement._engines = world.publisher._engines
    assert (await world.publish(policy)).outcome == "published"
    await world.serves(1)


async def test_a_pin_takes_back_what_was_proved_and_is_not_live_yet(world: Town) -> None:
    """The pin comes between two engines: the first goes back to the version that is pinned."""
    policy, (one, two) = await world.candidate(), world.fakes
    replacement, moves = world.publisher._replacement, PolicyMoves(world.database)
    replacement._engines = replacement._engines[:1]
    live = await world.policies.live_of(world.lineage)
    await replacement.bring(policy, live, world.proof(policy))
    await world.serves(1, "one")
    await moves.pin(world.lineage, 0, reason="exam")
    await world.serves(0)
    assert [one.weights, two.weights] == [str(world.model)] * 2
    # Unpinned, the candidate is brought again.
    await moves.unpin(world.lineage)
    replacement._engines = world.publisher._engines
    assert (await world.publish(policy)).outcome == "published"
    await world.serves(1)


async def test_whole_weights_are_watched_where_adapters_would_be_a_canary(world: Town) -> None:
    """An engine has one set of weights: no share of its sessions can have others."""
    policy = await world.candidate()
    gate = world.publisher._settings.gate.model_copy(update={"mode": "canary"})
    world.publisher._settings = world.publisher._settings.model_copy(update={"gate": gate})
    with capture_logs() as told:
        assert (await world.publish(policy)).outcome == "published"
    assert [one["policy_version"] for one in told if one["event"] == "canary_watched"] == [1]
    await world.serves(1)
    standing = await world.policies.standing(world.lineage)
    assert (standing.live.version, standing.canary) == (1, None)
    assert (standing.gate["mode"], standing.gate["state"]) == ("watch", "open")


async def test_a_rollback_is_a_swap_back_without_a_trainer(world: Town) -> None:
    assert (await world.publish(await world.candidate())).outcome == "published"
    await world.serves(1)
    async with world.talking():
        await PolicyMoves(world.database).rollback(world.lineage, reason="rude")
        await world.serves(0)
    whole(world)
    assert [fake.weights for fake in world.fakes] == [str(world.model)] * 2


async def raw(fake: FakeSglang, path: str, **body: object) -> None:
    async with aiohttp.ClientSession() as http, http.post(f"{fake.url}/{path}", json=body) as told:
        assert told.status == 200
