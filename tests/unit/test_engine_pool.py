from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from gateway.config import EngineSettings
from gateway.engine.movers import Alone, Movers
from gateway.engine.pool import EnginePool
from gateway.engine.sglang import SglangEngine
from gateway.engine.text_pool import TextPool
from gateway.errors import (
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    StoreUnavailable,
)
from gateway.records import Generation, PolicyKind, PolicyRef, Sampling, Served, new_id
from tests.fakes import FakeSglang, running
from tests.fixtures_engine import free_port
from tests.tiny_model import make_adapter

LINEAGE = UUID(int=7)
BASE = PolicyRef(lineage_id=LINEAGE, version=0, kind=PolicyKind.BASE)


class Live:
    """What is live, as the store would say."""

    def __init__(self, *policies: PolicyRef) -> None:
        self.served = {policy.lineage_id: Served(live=policy) for policy in policies}
        self.down = False

    def set(self, policy: PolicyRef) -> None:
        self.served[policy.lineage_id] = Served(live=policy)

    def try_out(self, canary: PolicyRef, share: float) -> None:
        before = self.served[canary.lineage_id]
        self.served[canary.lineage_id] = replace(before, canary=canary, share=share)

    async def __call__(self) -> Mapping[UUID, Served]:
        if self.down:
            raise StoreUnavailable("away")
        return dict(self.served)


def client(url: str, name: str) -> SglangEngine:
    return SglangEngine(
        EngineSettings(name=name, url=url, connect_timeout_s=0.5, idle_timeout_s=1.0)
    )


@asynccontextmanager
async def followed(
    live: Callable[[], Awaitable[Mapping[UUID, Served]]],
    *urls: str,
    patience_s: float = 2.0,
    poll_s: float = 0.05,
    movers: Movers | None = None,
    texts: TextPool | None = None,
) -> AsyncIterator[EnginePool]:
    pool = EnginePool(
        [client(url, f"e{number}") for number, url in enumerate(urls)],
        live,
        poll_s=poll_s,
        patience_s=patience_s,
        movers=movers,
        texts=texts,
    )
    task = asyncio.create_task(pool.follow())
    try:
        yield pool
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await pool.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.005)


def version_of(pool: EnginePool, number: int = 0, lineage_id: UUID = LINEAGE) -> int | None:
    """The version that an engine serves."""
    serving: dict[str, int] = pool.describe()[number]["serving"]
    return serving.get(lineage_id.hex)


def lora(directory: Path, version: int, lineage_id: UUID = LINEAGE) -> PolicyRef:
    return PolicyRef(
        lineage_id=lineage_id,
        version=version,
        kind=PolicyKind.LORA,
        uri=str(make_adapter(directory / f"{lineage_id.hex}-{version}", seed=version)),
    )


def asking(rid: str | None = None, max_tokens: int = 4) -> Callable[[PolicyRef], Generation]:
    def request(policy: PolicyRef) -> Generation:
        return Generation(
            rid=rid or new_id().hex,
            input_ids=(11, 12),
            sampling=Sampling(max_tokens=max_tokens),
            policy=policy,
        )

    return request


async def test_the_live_version_is_loaded_and_only_then_serves(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    live = Live(BASE)
    async with followed(live, fake_sglang.url, poll_s=60) as pool:
        await until(lambda: version_of(pool) == 0)
        first = lora(tmp_path, 1)
        fake_sglang.faults.load_delay_s = 0.2
        live.set(first)
        pool.poke()
        while not fake_sglang.adapters:
            _, policy = pool.choose(LINEAGE, "s")
            assert policy == BASE
            await asyncio.sleep(0.01)
        await until(lambda: pool.choose(LINEAGE, "s")[1] == first)
        assert pool.ready


async def test_sessions_stay_where_they_are_and_spread(fake_sglang: FakeSglang) -> None:
    async with (
        running(FakeSglang(), FakeSglang()) as (one, two),
        followed(Live(BASE), fake_sglang.url, one.url, two.url) as pool,
    ):
        await until(lambda: all(version_of(pool, n) == 0 for n in range(3)))
        keys = [f"session-{n}" for n in range(60)]
        placed = {key: pool.choose(LINEAGE, key)[0].name for key in keys}
        assert placed == {key: pool.choose(LINEAGE, key)[0].name for key in keys}
        assert set(placed.values()) == {"e0", "e1", "e2"}
        # An engine that goes moves only its own sessions.
        without = {key: pool.choose(LINEAGE, key, {"e1"})[0].name for key in keys}
        assert all(
            without[key] == name if name != "e1" else without[key] in {"e0", "e2"}
            for key, name in placed.items()
        )


async def test_an_engine_with_the_live_version_is_preferred(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    async with FakeSglang() as slow:
        live = Live(BASE)
        async with followed(live, fake_sglang.url, slow.url) as pool:
            await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 0)
            slow.faults.refuse_load = "no room"
            live.set(lora(tmp_path, 1))
            pool.poke()
            await until(lambda: version_of(pool, 0) == 1)
            await until(lambda: bool(pool.describe()[1]["failing"]))
            assert {pool.choose(LINEAGE, f"s{n}")[0].name for n in range(20)} == {"e0"}
            assert pool.describe()[1]["failing"] == {f"{LINEAGE.hex}-v1": "no room"}
            assert version_of(pool, 1) == 0
            # It still serves what it has, where nobody has anything newer.
            assert pool.choose(LINEAGE, "s", {"e0"})[1] == BASE


async def test_a_restarted_engine_is_fenced_until_its_version_is_back(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    live = Live(lora(tmp_path, 3))
    async with followed(live, fake_sglang.url) as pool:
        await until(lambda: version_of(pool) == 3)
        fake_sglang.faults.refuse_load = "disk is away"
        await fake_sglang.restart()
        await until(lambda: version_of(pool) is None)
        with pytest.raises(EngineUnavailable, match="has not loaded the live version"):
            pool.choose(LINEAGE, "s")
        fake_sglang.faults.refuse_load = None
        await until(lambda: version_of(pool) == 3)


async def test_a_request_that_meets_a_restart_waits_for_the_version(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    policy = lora(tmp_path, 3)
    # Nothing is polled: the failed request itself makes the pool look.
    async with followed(Live(policy), fake_sglang.url, poll_s=60, patience_s=5) as pool:
        await until(lambda: version_of(pool) == 3)
        await fake_sglang.restart()
        async with pool.generate(asking("turn"), LINEAGE, "s") as stream:
            chunks = [chunk async for chunk in stream]
        assert stream.policy == policy
        assert sum(len(chunk.ids) for chunk in chunks) > 0
        assert [body["rid"] for body in fake_sglang.requests] == ["turn", "turn-1"]


async def test_a_gateway_that_starts_serves_an_earlier_version_meanwhile(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    engine = client(fake_sglang.url, "loader")
    for version in (1, 2):
        await engine.load(lora(tmp_path, version))
    await engine.close()
    fake_sglang.faults.refuse_load = "not yet"
    live = lora(tmp_path, 3)
    async with followed(Live(live), fake_sglang.url) as pool:
        await until(lambda: version_of(pool) == 2)
        async with pool.generate(asking(), LINEAGE, "s") as stream:
            await stream.start()
            assert stream.policy.version == 2
        assert fake_sglang.requests[-1]["lora_path"] == f"{LINEAGE.hex}-v2"


async def test_a_rollback_is_followed_like_any_change(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    first, second = lora(tmp_path, 1), lora(tmp_path, 2)
    live = Live(second)
    async with followed(live, fake_sglang.url) as pool:
        await until(lambda: version_of(pool) == 2)
        live.set(first)
        pool.poke()
        await until(lambda: version_of(pool) == 1)
        assert pool.choose(LINEAGE, "s")[1] == first


async def test_a_dead_engine_delays_no_other(fake_sglang: FakeSglang, tmp_path: Path) -> None:
    live = Live(lora(tmp_path, 1))
    async with FakeSglang() as stuck:
        stuck.faults.load_delay_s = 60.0
        dead = f"http://127.0.0.1:{free_port()}"
        async with followed(live, dead, stuck.url, fake_sglang.url) as pool:
            await until(lambda: version_of(pool, 2) == 1)
            assert pool.choose(LINEAGE, "s")[0].name == "e2"
            down = pool.describe()[0]
            assert not down["healthy"]
            assert "cannot be reached" in down["error"]


async def test_an_engine_that_comes_back_serves_again(fake_sglang: FakeSglang) -> None:
    async with followed(Live(BASE), fake_sglang.url) as pool:
        await until(lambda: pool.ready)
        await fake_sglang.stop()
        await until(lambda: not pool.ready)
        with pytest.raises(EngineUnavailable, match="e0: cannot be reached"):
            pool.choose(LINEAGE, "s")
        await fake_sglang.start()
        await until(lambda: version_of(pool) == 0 and pool.ready)


async def test_what_was_live_goes_on_while_the_store_is_away(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    live = Live(lora(tmp_path, 1))
    async with followed(live, fake_sglang.url, poll_s=0.02) as pool:
        await until(lambda: version_of(pool) == 1)
        live.down = True
        pool.poke()
        await asyncio.sleep(0.1)
        assert pool.choose(LINEAGE, "s")[1].version == 1
        live.down = False
        live.set(lora(tmp_path, 2))
        await until(lambda: version_of(pool) == 2)


async def test_a_canary_serves_the_same_share_of_sessions_until_it_is_over(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    old, new = lora(tmp_path, 1), lora(tmp_path, 2)
    live, sessions = Live(old), [f"session {number}" for number in range(1000)]

    def placed() -> set[str]:
        return {key for key in sessions if pool.choose(LINEAGE, key)[1] == new}

    async with followed(live, fake_sglang.url) as pool:
        await until(lambda: version_of(pool) == 1)
        live.try_out(new, 0.2)
        pool.poke()
        await until(lambda: bool(placed()))
        chosen = placed()
        # 1000 draws at 0.2: four standard deviations are 51.
        assert 149 <= len(chosen) <= 251
        assert placed() == chosen
        key = min(chosen)
        live.try_out(new, 0.4)
        pool.poke()
        await until(lambda: len(placed()) > 251)
        # A larger share takes nobody off the canary.
        assert chosen < placed()
        async with pool.generate(asking(), LINEAGE, key) as stream:
            assert [chunk async for chunk in stream][-1].finish is not None
            assert stream.policy == new
        fake_sglang.adapters.pop(new.adapter or "")
        live.set(old)
        pool.poke()
        await until(lambda: not placed())
        assert pool.choose(LINEAGE, key)[1] == old


async def test_an_engine_without_the_canary_serves_the_live_version_to_all(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    old, new = lora(tmp_path, 1), lora(tmp_path, 2)
    live = Live(old)
    async with followed(live, fake_sglang.url) as pool:
        await until(lambda: version_of(pool) == 1)
        fake_sglang.faults.refuse_load = "no room"
        live.try_out(new, 1.0)
        pool.poke()
        await until(lambda: bool(pool.describe()[0]["failing"]))
        assert {pool.choose(LINEAGE, f"s{n}")[1] for n in range(20)} == {old}


async def test_a_rollback_moves_back_and_what_was_undone_serves_only_where_nothing_else_can(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    old, bad = lora(tmp_path, 1), lora(tmp_path, 2)
    live = Live(old)
    async with FakeSglang() as other, followed(live, fake_sglang.url, other.url) as pool:
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 1)
        live.set(bad)
        pool.poke()
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 2)
        # Both unloaded it, and one cannot have it back.
        for server in (fake_sglang, other):
            server.adapters.pop(old.adapter or "")
        other.faults.refuse_load = "no room"
        live.served[LINEAGE] = Served(live=old, undone=frozenset({2}))
        pool.poke()
        await until(lambda: version_of(pool, 0) == 1)
        assert version_of(pool, 1) == 2
        assert {pool.choose(LINEAGE, f"s{n}")[1] for n in range(20)} == {old}
        assert pool.choose(LINEAGE, "s", {"e0"})[1] == bad


async def test_lineages_share_an_engine(fake_sglang: FakeSglang, tmp_path: Path) -> None:
    other = new_id()
    live = Live(lora(tmp_path, 2), lora(tmp_path, 5, other))
    async with followed(live, fake_sglang.url) as pool:
        await until(lambda: version_of(pool) == 2 and version_of(pool, 0, other) == 5)
        assert pool.choose(other, "s")[1].version == 5
        del live.served[other]
        pool.poke()
        await until(lambda: version_of(pool, 0, other) is None)
        assert version_of(pool) == 2


async def test_what_is_in_use_is_counted(fake_sglang: FakeSglang, tmp_path: Path) -> None:
    fake_sglang.chunk_delay_s = 0.02
    live = Live(lora(tmp_path, 1))
    async with followed(live, fake_sglang.url) as pool:
        await until(lambda: version_of(pool) == 1)
        assert pool.in_flight() == {}
        async with pool.lease(LINEAGE, "s") as (_, policy):
            assert policy.version == 1
            async with pool.generate(asking(max_tokens=100), LINEAGE, "s") as stream:
                await stream.start()
                assert pool.in_flight() == {LINEAGE.hex: {1: 2}}
                live.set(lora(tmp_path, 2))
                pool.poke()
                await until(lambda: version_of(pool) == 2)
                async with pool.lease(LINEAGE, "t"):
                    assert pool.in_flight() == {LINEAGE.hex: {1: 2, 2: 1}}
            assert pool.in_flight() == {LINEAGE.hex: {1: 1}}
        assert pool.in_flight() == {}


async def test_another_engine_takes_over_before_the_first_chunk(fake_sglang: FakeSglang) -> None:
    async with (
        FakeSglang() as other,
        followed(Live(BASE), fake_sglang.url, other.url, poll_s=60) as pool,
    ):
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 0)
        key = next(k for k in map(str, range(50)) if pool.choose(LINEAGE, k)[0].name == "e0")
        for fault in ((503, "The request queue is full."), (500, "Internal Server Error")):
            fake_sglang.faults.refuse_once.append(fault)
            async with pool.generate(asking("turn"), LINEAGE, key) as stream:
                assert not stream.started
                assert [chunk async for chunk in stream][-1].finish
                assert stream.engine.name == "e1"
            assert other.requests[-1]["rid"] == "turn-1"
        fake_sglang.faults.hang = True
        async with pool.generate(asking(), LINEAGE, key) as stream:
            await stream.start()
            assert stream.engine.name == "e1"
        assert pool.in_flight() == {}


async def test_a_refusal_is_final(fake_sglang: FakeSglang) -> None:
    async with (
        FakeSglang() as other,
        followed(Live(BASE), fake_sglang.url, other.url, poll_s=60) as pool,
    ):
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 0)
        for fake in (fake_sglang, other):
            fake.faults.refuse = (400, "no")
        stream = pool.generate(asking(), LINEAGE, "s")
        with pytest.raises(EngineRejected, match="no"):
            await stream.start()
        assert len(fake_sglang.requests) + len(other.requests) == 1
        assert pool.in_flight() == {}


async def test_the_only_engine_is_tried_again_where_it_could_not_be_reached(
    fake_sglang: FakeSglang,
) -> None:
    async with followed(Live(BASE), fake_sglang.url, poll_s=60) as pool:
        await until(lambda: version_of(pool) == 0)
        fake_sglang.faults.refuse_once.append((502, "Bad Gateway"))
        async with pool.generate(asking(), LINEAGE, "s") as stream:
            assert [chunk async for chunk in stream][-1].finish
        assert len(fake_sglang.requests) == 2
        for fault, kind in (
            ((503, "The request queue is full."), EngineOverloaded),
            ((500, "Internal Server Error"), EngineUnavailable),
        ):
            fake_sglang.requests.clear()
            fake_sglang.faults.refuse = fault
            with pytest.raises(kind):
                await pool.generate(asking(), LINEAGE, "s").start()
            assert len(fake_sglang.requests) == (1 if kind is EngineOverloaded else 3)
        fake_sglang.faults.refuse, fake_sglang.faults.hang = None, True
        with pytest.raises(EngineTimeout):
            await pool.generate(asking(), LINEAGE, "s").start()
        assert pool.in_flight() == {}


async def test_nothing_is_tried_again_after_the_first_chunk(fake_sglang: FakeSglang) -> None:
    async with (
        FakeSglang() as other,
        followed(Live(BASE), fake_sglang.url, other.url, poll_s=60) as pool,
    ):
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 0)
        for fake in (fake_sglang, other):
            fake.faults.die_after = 1
            fake.script = lambda _: [21, 22, 23]
        async with pool.generate(asking(), LINEAGE, "s") as stream:
            assert (await anext(stream)).ids == (21,)
            with pytest.raises(EngineUnavailable):
                await anext(stream)
        assert len(fake_sglang.requests) + len(other.requests) == 1
        assert pool.in_flight() == {}


async def test_closing_a_stream_early_aborts_it(fake_sglang: FakeSglang) -> None:
    fake_sglang.chunk_delay_s = 0.02
    async with followed(Live(BASE), fake_sglang.url) as pool:
        await until(lambda: version_of(pool) == 0)
        stream = pool.generate(asking("turn", 200), LINEAGE, "s")
        await anext(stream)
        await stream.aclose()
        await stream.aclose()
        await until(lambda: fake_sglang.aborted == ["turn"])
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        unused = pool.generate(asking(), LINEAGE, "s")
        await unused.aclose()
        assert len(fake_sglang.requests) == 1


async def test_a_replacement_that_never_ends_holds_up_no_request_for_ever(
    fake_sglang: FakeSglang,
) -> None:
    """Who was at it is gone, and so is Postgres, which would say so."""

    class Stuck(Alone):
        moving: frozenset[str] = frozenset()

        async def under_way(self, engines: Collection[str]) -> frozenset[str]:
            return self.moving & frozenset(engines)

    live, movers = Live(replace(BASE, kind=PolicyKind.FULL)), Stuck()
    async with followed(live, fake_sglang.url, movers=movers) as pool:
        await until(lambda: version_of(pool) == 0)
        movers.moving = frozenset({"e0"})
        await until(lambda: pool._moving == movers.moving)
        live.down = True
        waits = asyncio.create_task(pool.next_engine(LINEAGE, "a"))
        done, _ = await asyncio.wait([waits], timeout=0.2)
        assert not done
        waits.cancel()
        pool._moving_since -= 3600
        async with asyncio.timeout(120):
            engine, policy = await pool.next_engine(LINEAGE, "a")
        assert (engine.name, policy.version) == ("e0", 0)


async def test_an_unknown_lineage_waits_no_longer_than_its_patience(
    fake_sglang: FakeSglang,
) -> None:
    live = Live(BASE)
    async with followed(live, fake_sglang.url, patience_s=0.1) as pool:
        await until(lambda: version_of(pool) == 0)
        unknown = new_id()
        with pytest.raises(EngineUnavailable):
            await pool.generate(asking(), unknown, "s").start()
        live.set(replace(BASE, lineage_id=unknown))
        async with pool.generate(asking(), unknown, "s") as stream:
            await stream.start()
            assert stream.policy.lineage_id == unknown


async def test_a_pool_before_its_engine_is_up() -> None:
    pool = EnginePool([], Live(BASE))
    assert not pool.ready
    assert pool.context_length(4096) == 4096
    with pytest.raises(EngineUnavailable, match="no engine is configured"):
        pool.choose(LINEAGE, "s")
    async with followed(Live(BASE), f"http://127.0.0.1:{free_port()}") as pool:
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await pool.generate(asking(), LINEAGE, "s").start()


async def test_the_least_context_counts(fake_sglang: FakeSglang) -> None:
    async with (
        FakeSglang(context_length=512) as small,
        followed(Live(BASE), fake_sglang.url, small.url) as pool,
    ):
        await until(lambda: version_of(pool, 0) == version_of(pool, 1) == 0)
        assert pool.context_length(4096) == 512
        assert pool.context_length(256) == 256
