"""Engines that an operator has drained: no new request, and what runs there ends there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import EngineSettings
from gateway.engine.movers import Alone
from gateway.engine.openai import OpenAIEngine
from gateway.engine.pool import EnginePool
from gateway.engine.text_pool import TextPool
from gateway.errors import EngineUnavailable
from gateway.records import PolicyKind, Sampling, TextChunk, TextGeneration, TurnRequest
from tests.fakes import FakeSglang, Turnstile, running
from tests.fakes_openai import FakeOpenAI, says
from tests.fixtures_engine import free_port
from tests.unit.test_engine_pool import (
    BASE,
    LINEAGE,
    Live,
    asking,
    followed,
    lora,
    until,
    version_of,
)

KEYS = [f"session-{number}" for number in range(60)]


def placed(pool: EnginePool) -> dict[str, str]:
    """Which engine each session's next request goes to."""
    return {key: pool.choose(LINEAGE, key)[0].name for key in KEYS}


def told(pool: EnginePool) -> dict[str, tuple[bool, int]]:
    """What is said of each engine: whether it drains, and the requests that run there."""
    return {one["name"]: (one["draining"], one["requests"]) for one in pool.describe()}


async def test_only_the_sessions_of_a_draining_engine_move_and_they_come_back(
    fake_sglang: FakeSglang,
) -> None:
    async with (
        running(FakeSglang(), FakeSglang()) as (one, two),
        followed(Live(BASE), fake_sglang.url, one.url, two.url) as pool,
    ):
        await until(lambda: all(version_of(pool, n) == 0 for n in range(3)))
        before = placed(pool)
        assert {*before.values()} == {"e0", "e1", "e2"}
        pool.drain({"e1", "of another gateway"})
        during = placed(pool)
        assert {key for key in KEYS if during[key] != before[key]} == {
            key for key in KEYS if before[key] == "e1"
        }
        assert {during[key] for key in KEYS if before[key] == "e1"} == {"e0", "e2"}
        assert told(pool) == {"e0": (False, 0), "e1": (True, 0), "e2": (False, 0)}
        assert pool.ready
        # Two at once, and one of them alone is resumed.
        pool.drain({"e1", "e2"})
        assert {*placed(pool).values()} == {"e0"}
        pool.drain({"e2"})
        assert {*placed(pool).values()} == {"e0", "e1"}
        pool.drain(())
        assert placed(pool) == before


async def test_what_runs_on_a_draining_engine_ends_there(fake_sglang: FakeSglang) -> None:
    fake_sglang.turnstile = gate = Turnstile()
    fake_sglang.replies.append([11, 12, 13, 2])
    async with (
        FakeSglang() as other,
        followed(Live(BASE), fake_sglang.url, other.url) as pool,
    ):
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 0)
        key = next(key for key, name in placed(pool).items() if name == "e0")
        async with pool.generate(asking("first", max_tokens=9), LINEAGE, key) as stream:
            gate.release()
            await stream.start()
            pool.drain({"e0"})
            assert told(pool) == {"e0": (True, 1), "e1": (False, 0)}
            async with pool.generate(asking("second"), LINEAGE, key) as following:
                assert [chunk async for chunk in following][-1].finish is not None
                assert following.engine.name == "e1"
            assert told(pool) == {"e0": (True, 1), "e1": (False, 0)}
            await gate.let(1)
            for _ in range(2):
                gate.release()
            chunks = [chunk async for chunk in stream]
        assert [token for chunk in chunks for token in chunk.ids] == [11, 12, 13, 2]
        assert chunks[-1].finish is not None
        assert told(pool) == {"e0": (True, 0), "e1": (False, 0)}
        assert [body["rid"] for body in fake_sglang.requests] == ["first"]


async def test_a_request_that_failed_elsewhere_is_not_tried_on_a_draining_engine(
    fake_sglang: FakeSglang,
) -> None:
    async with (
        FakeSglang() as other,
        followed(Live(BASE), fake_sglang.url, other.url, poll_s=60) as pool,
    ):
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 0)
        pool.drain({"e0"})
        other.faults.refuse = (500, "Internal Server Error")
        with pytest.raises(EngineUnavailable):
            await pool.generate(asking(), LINEAGE, "s").start()
        assert fake_sglang.requests == []
        assert len(other.requests) > 1
        assert pool.in_flight() == {}


async def test_where_no_other_can_serve_requests_are_refused_at_once(
    fake_sglang: FakeSglang,
) -> None:
    down = f"http://127.0.0.1:{free_port()}"
    async with followed(Live(BASE), fake_sglang.url, down, patience_s=3600) as pool:
        await until(lambda: version_of(pool) == 0 and bool(pool.describe()[1]["error"]))
        pool.drain({"e0"})
        assert not pool.ready
        async with asyncio.timeout(120):
            with pytest.raises(EngineUnavailable, match="e0: is draining; e1: cannot be reached"):
                await pool.generate(asking(), LINEAGE, "s").start()
        pool.drain(())
        assert pool.ready
        async with pool.generate(asking(), LINEAGE, "s") as stream:
            assert [chunk async for chunk in stream][-1].finish is not None


async def test_an_engine_that_drains_as_the_gateway_starts_gets_nothing(
    fake_sglang: FakeSglang,
) -> None:
    async with followed(Live(BASE), fake_sglang.url, patience_s=3600) as pool:
        # Before anybody has looked at the engine.
        pool.drain({"e0"})
        async with asyncio.timeout(120):
            with pytest.raises(EngineUnavailable, match="e0: is draining"):
                await pool.generate(asking(), LINEAGE, "s").start()
        await until(lambda: version_of(pool) == 0)
        assert not pool.ready


async def test_a_draining_engine_has_the_live_version_before_it_serves_again(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    live, second, third = Live(lora(tmp_path, 1)), lora(tmp_path, 2), lora(tmp_path, 3)
    async with FakeSglang() as other, followed(live, fake_sglang.url, other.url) as pool:
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 1)
        key = next(key for key, name in placed(pool).items() if name == "e0")
        pool.drain({"e0"})
        # What is published meanwhile is loaded there, too.
        live.set(second)
        pool.poke()
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 2)
        # It is started anew, which is what one drains for, and cannot have its version back yet.
        fake_sglang.faults.refuse_load = "the disk is away"
        await fake_sglang.restart()
        await until(lambda: version_of(pool) is None)
        live.set(third)
        pool.poke()
        await until(lambda: version_of(pool, 1) == 3)
        pool.drain(())
        assert pool.choose(LINEAGE, key)[0].name == "e1"
        fake_sglang.faults.refuse_load = None
        await until(lambda: version_of(pool) == 3)
        engine, policy = pool.choose(LINEAGE, key)
        assert (engine.name, policy) == ("e0", third)


async def test_a_canary_is_served_by_another_engine_or_not_at_all(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    old, new = lora(tmp_path, 1), lora(tmp_path, 2)
    live = Live(old)
    async with FakeSglang() as other, followed(live, fake_sglang.url, other.url) as pool:
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 1)
        live.try_out(new, 1.0)
        pool.poke()
        await until(lambda: all(one["trying"] for one in pool.describe()))
        assert {*placed(pool).values()} == {"e0", "e1"}
        pool.drain({"e0"})
        assert {*placed(pool).values()} == {"e1"}
        assert {pool.choose(LINEAGE, key)[1] for key in KEYS} == {new}
        # Where the draining engine alone has it, the live version serves.
        other.adapters.pop(new.adapter or "")
        other.faults.refuse_load = "no room"
        await until(lambda: not pool.describe()[1]["trying"])
        assert {pool.choose(LINEAGE, key)[1] for key in KEYS} == {old}
        assert {*placed(pool).values()} == {"e1"}


async def test_requests_wait_for_weights_that_are_replaced_rather_than_go_to_a_draining_engine(
    fake_sglang: FakeSglang,
) -> None:
    class Busy(Alone):
        moving: frozenset[str] = frozenset()

        async def under_way(self, engines: Collection[str]) -> frozenset[str]:
            return self.moving & frozenset(engines)

    live, movers = Live(replace(BASE, kind=PolicyKind.FULL)), Busy()
    async with (
        FakeSglang() as other,
        followed(live, fake_sglang.url, other.url, movers=movers) as pool,
    ):
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 0)
        pool.drain({"e0"})
        movers.moving = frozenset({"e1"})
        await until(lambda: pool._moving == movers.moving)
        waits = asyncio.create_task(pool.next_engine(LINEAGE, "a"))
        await asyncio.sleep(0)
        assert not waits.done()
        movers.moving = frozenset()
        pool.poke()
        async with asyncio.timeout(120):
            engine, _ = await waits
        assert engine.name == "e1"


def text_pool(*urls: str) -> TextPool:
    engines = [
        OpenAIEngine(EngineSettings(kind="openai", name=f"t{number}", url=url))
        for number, url in enumerate(urls)
    ]
    return TextPool(engines, poll_s=0.05)


@asynccontextmanager
async def followed_texts(*urls: str) -> AsyncIterator[TextPool]:
    pool = text_pool(*urls)
    task = asyncio.create_task(pool.follow())
    try:
        yield pool
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await pool.close()


def _text(chunks: Sequence[TextChunk]) -> str:
    return "".join(delta.text for chunk in chunks for delta in chunk.deltas)


HELLO = TextGeneration(
    request=TurnRequest(
        dialect="openai_chat",
        model="ours",
        messages=({"role": "user", "content": "Hello?"},),
        sampling=Sampling(),
    ),
    seed=None,
)


async def test_engines_without_token_ids_drain_alike() -> None:
    async with FakeOpenAI() as one, FakeOpenAI() as two, followed_texts(one.url, two.url) as pool:
        await until(lambda: all(engine["healthy"] for engine in pool.describe()))
        key = next(key for key in KEYS if pool.choose(key).name == "t0")
        for fake in (one, two):
            fake.replies = deque([says("Good ", "day")])

        def counts() -> list[tuple[bool, int]]:
            return [(engine["draining"], engine["requests"]) for engine in pool.describe()]

        async with aclosing(pool.generate(HELLO, key)) as stream:
            await stream.start()
            pool.drain({"t0"})
            assert counts() == [(True, 1), (False, 0)]
            assert pool.choose(key).name == "t1"
            assert _text([chunk async for chunk in stream]) == "Good day"
        assert counts() == [(True, 0), (False, 0)]
        pool.drain({"t0", "t1"})
        assert not pool.ready
        with pytest.raises(EngineUnavailable):
            await pool.generate(HELLO, key).start()
        assert counts() == [(True, 0), (True, 0)]
        pool.drain(())
        assert pool.choose(key).name == "t0"


async def test_a_stand_in_serves_while_every_engine_with_token_ids_drains(
    fake_sglang: FakeSglang,
) -> None:
    async with (
        FakeOpenAI() as other,
        followed(Live(BASE), fake_sglang.url, texts=text_pool(other.url)) as pool,
    ):
        await until(lambda: version_of(pool) == 0 and pool.texts.ready)
        assert not pool.text_only(LINEAGE)
        pool.drain({"e0"})
        assert pool.text_only(LINEAGE)
        assert pool.ready
        # The stand-in is drained by its name as the others are.
        pool.drain({"e0", "t0"})
        assert (pool.ready, pool.text_only(LINEAGE)) == (False, False)
        assert told(pool) == {"e0": (True, 0), "t0": (True, 0)}
        pool.drain(())
        assert not pool.text_only(LINEAGE)
