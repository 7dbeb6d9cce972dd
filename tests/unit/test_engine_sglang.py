"""What the client makes of a server that misbehaves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web
from pydantic import SecretStr

from gateway.config import EngineSettings
from gateway.engine.sglang import SglangEngine
from gateway.engine.whole_weights import IN_DOUBT
from gateway.errors import (
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
)
from gateway.records import (
    Chunk,
    FinishReason,
    Generation,
    PolicyKind,
    PolicyRef,
    Sampling,
    VersionSpan,
    new_id,
)
from tests.fakes import FakeSglang
from tests.tiny_model import make_adapter

BASE = PolicyRef(lineage_id=UUID(int=1), version=0, kind=PolicyKind.BASE)
PROMPT = (11, 12, 13)


@pytest.fixture
async def engine(fake_sglang: FakeSglang) -> AsyncIterator[SglangEngine]:
    engine = SglangEngine(EngineSettings(url=fake_sglang.url, idle_timeout_s=0.3))
    yield engine
    await engine.close()


def ask(max_tokens: int = 8, **values: object) -> Generation:
    return Generation(
        rid=new_id().hex,
        input_ids=PROMPT,
        sampling=Sampling(max_tokens=max_tokens, **values),  # type: ignore[arg-type]
        policy=BASE,
    )


async def collect(engine: SglangEngine, request: Generation) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(request)]


def ids_of(chunks: Sequence[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids]


async def until_aborted(fake: FakeSglang, rid: str) -> None:
    async with asyncio.timeout(120):
        while rid not in fake.aborted:
            await asyncio.sleep(0.005)


async def test_scripted_ids_come_back_with_the_models_logprobs(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    fake_sglang.replies.append([21, 22, 2])
    chunks = await collect(engine, ask())
    assert ids_of(chunks) == [21, 22, 2]
    logprobs = [value for chunk in chunks for value in chunk.logprobs]
    assert logprobs == pytest.approx(fake_sglang.score([*PROMPT, 21, 22, 2], 3))
    assert chunks[-1].finish is not None
    assert chunks[-1].finish.reason is FinishReason.STOP
    assert chunks[-1].finish.spans == (VersionSpan(0, 0, 3),)


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("chunk_tokens", [1, 3])
async def test_however_the_server_streams_ids_are_exact(
    cumulative: bool, chunk_tokens: int
) -> None:
    async with FakeSglang(cumulative=cumulative, chunk_tokens=chunk_tokens) as fake:
        fake.replies.append([21, 21, 22, 23, 21, 24, 2])
        engine = SglangEngine(EngineSettings(url=fake.url))
        chunks = await collect(engine, ask())
        await engine.close()
    assert ids_of(chunks) == [21, 21, 22, 23, 21, 24, 2]
    assert all(len(chunk.ids) == len(chunk.logprobs) for chunk in chunks)
    assert chunks[-1].finish is not None
    assert chunks[-1].finish.detail is None


async def test_missing_logprobs_are_never_padded(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    fake_sglang.replies.append([21, 22, 2])
    fake_sglang.faults.lose_logprob = True
    chunks = await collect(engine, ask())
    assert ids_of(chunks) == [21, 22, 2]
    assert [value for chunk in chunks for value in chunk.logprobs] == []
    assert chunks[-1].finish is not None
    assert chunks[-1].finish.detail == "logprob_mismatch"


async def test_logprobs_that_are_not_finite_are_seen(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    fake_sglang.replies.append([21, 2])
    fake_sglang.faults.null_logprobs = True
    chunks = await collect(engine, ask())
    assert all(math.isnan(value) for chunk in chunks for value in chunk.logprobs)
    assert chunks[-1].finish is not None
    assert chunks[-1].finish.detail == "logprob_not_finite"


async def test_silence_is_bounded_and_the_request_aborted(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    fake_sglang.chunk_delay_s = 30.0
    fake_sglang.replies.append([21, 22])
    request = ask()
    with pytest.raises(EngineTimeout):
        await collect(engine, request)
    await until_aborted(fake_sglang, request.rid)


async def test_silence_is_no_failure_while_whole_weights_are_replaced(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    """Each of several waits is longer than a silence may be, and the server says that it waits."""
    fake_sglang.replies.append([*range(20, 28)])
    fake_sglang.turnstile = asyncio.Semaphore(1)
    stream = engine.generate(ask(8))
    chunks = [await anext(stream)]
    await engine._control("/pause_generation", {"mode": "retract"})
    looks, held = 0, engine.held

    async def look() -> bool:
        nonlocal looks
        looks += 1
        paused = await held()
        if looks == 3:
            assert fake_sglang.turnstile is not None
            for _ in range(8):
                fake_sglang.turnstile.release()
            await engine.resume()
        # However slow this machine is, from then on it is no silence that is looked at.
        return paused or looks > 3

    engine.held = look  # type: ignore[method-assign]
    chunks += [chunk async for chunk in stream]
    assert ids_of(chunks) == [*range(20, 28)]
    assert looks >= 3


async def test_a_server_that_says_nothing_at_all(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    fake_sglang.faults.hang = True
    with pytest.raises(EngineTimeout):
        await collect(engine, ask())
    with pytest.raises(EngineTimeout):
        await engine.score(PROMPT, 1, BASE)


async def test_a_connection_lost_in_mid_reply(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    fake_sglang.replies.append([21, 22, 23, 24])
    fake_sglang.faults.die_after = 2
    seen: list[int] = []

    async def read() -> None:
        async for chunk in engine.generate(ask()):
            seen.extend(chunk.ids)

    with pytest.raises(EngineUnavailable):
        await read()
    assert seen == [21, 22]


async def test_leaving_early_aborts_exactly_that_request(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    fake_sglang.chunk_delay_s = 0.02
    request, other = ask(200), ask(5)
    stream = engine.generate(request)
    await anext(stream)
    finishing = asyncio.create_task(collect(engine, other))
    await stream.aclose()
    await until_aborted(fake_sglang, request.rid)
    await finishing
    assert fake_sglang.aborted == [request.rid]


async def test_a_cancelled_reader_aborts(engine: SglangEngine, fake_sglang: FakeSglang) -> None:
    fake_sglang.chunk_delay_s = 0.05
    request = ask(200)
    task = asyncio.create_task(collect(engine, request))
    while not fake_sglang.requests:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_aborted(fake_sglang, request.rid)


async def test_a_whole_reply_is_not_aborted_and_its_connection_kept(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    for _ in range(3):
        await collect(engine, ask())
    stream = engine.generate(ask())
    async for chunk in stream:
        if chunk.finish:
            break
    await stream.aclose()
    await engine.status()
    assert fake_sglang.aborted == []


async def test_nothing_follows_a_reply_that_ended_failed_or_was_never_begun(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    ended, failed, unbegun = (engine.generate(ask()) for _ in range(3))
    assert [chunk async for chunk in ended][-1].finish
    await unbegun.aclose()
    fake_sglang.faults.refuse = (400, "no")
    with pytest.raises(EngineRejected):
        await anext(failed)
    for stream in (ended, failed, unbegun):
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await stream.aclose()
    await engine.status()
    assert len(fake_sglang.requests) == 2
    assert fake_sglang.aborted == []


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "no", EngineRejected),
        (503, "The request queue is full.", EngineOverloaded),
        (500, "Internal Server Error", EngineUnavailable),
    ],
)
async def test_refusals(
    engine: SglangEngine,
    fake_sglang: FakeSglang,
    status: int,
    message: str,
    kind: type[Exception],
) -> None:
    fake_sglang.faults.refuse = (status, message)
    with pytest.raises(kind, match=message):
        await collect(engine, ask())
    with pytest.raises(kind, match=message):
        await engine.score(PROMPT, 1, BASE)


async def test_a_full_queue_inside_the_stream(fake_sglang: FakeSglang) -> None:
    fake_sglang.max_queued, fake_sglang.chunk_delay_s = 0, 0.05
    engine = SglangEngine(EngineSettings(url=fake_sglang.url))
    first = engine.generate(ask(200))
    await anext(first)
    with pytest.raises(EngineOverloaded, match="queue is full"):
        await collect(engine, ask())
    with pytest.raises(EngineOverloaded, match="queue is full"):
        await engine.score(PROMPT, 1, BASE)
    await first.aclose()
    await engine.close()


async def test_scores_that_are_not_numbers_are_refused(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    fake_sglang.faults.null_logprobs = True
    with pytest.raises(EngineRejected, match="not finite"):
        await engine.score(PROMPT, 1, BASE)


async def test_scores_of_other_tokens_are_refused(
    engine: SglangEngine, fake_sglang: FakeSglang, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fake_sglang._scored
    for wrong in (lambda ids: [*ids[:-1], 7], lambda ids: ids[:-1]):

        def scored(body: dict[str, Any], wrong: Any = wrong) -> dict[str, Any]:
            return right({**body, "input_ids": wrong(body["input_ids"])})

        monkeypatch.setattr(fake_sglang, "_scored", scored)
        with pytest.raises(EngineRejected, match="asked to score 2 tokens"):
            await engine.score(PROMPT, 1, BASE)


async def test_an_engine_that_dies_of_an_id_is_unavailable(fake_sglang: FakeSglang) -> None:
    # Without a status call the client does not know the vocabulary.
    engine = SglangEngine(EngineSettings(url=fake_sglang.url))
    with pytest.raises(EngineUnavailable):
        await engine.score((5, 10**6), 1, BASE)
    assert fake_sglang.crashed
    async with asyncio.timeout(120):
        while True:
            try:
                await engine.status()
            except EngineUnavailable:
                break
    await engine.close()


async def test_loading_is_bounded(fake_sglang: FakeSglang, tmp_path: Path) -> None:
    fake_sglang.faults.load_delay_s = 30.0
    engine = SglangEngine(EngineSettings(url=fake_sglang.url, load_timeout_s=0.1))
    policy = PolicyRef(lineage_id=new_id(), version=1, kind=PolicyKind.LORA, uri=str(tmp_path))
    with pytest.raises(EngineTimeout, match="not loaded in 0 s"):
        await engine.load(policy)
    await engine.close()


async def test_replacing_whole_weights_is_bounded(fake_sglang: FakeSglang, tmp_path: Path) -> None:
    fake_sglang.faults.update_delay_s = 30.0
    engine = SglangEngine(EngineSettings(url=fake_sglang.url, load_timeout_s=0.1))
    policy = PolicyRef(lineage_id=new_id(), version=1, kind=PolicyKind.FULL, uri=str(tmp_path))
    with pytest.raises(EngineTimeout, match="not loaded in 0 s"):
        await engine.load(policy)
    assert fake_sglang.told_version == IN_DOUBT
    assert fake_sglang.pause is None
    await engine.close()


async def test_a_slow_load_may_take_longer_than_any_other_order(
    fake_sglang: FakeSglang, tmp_path: Path
) -> None:
    fake_sglang.faults.load_delay_s = 0.5
    engine = SglangEngine(EngineSettings(url=fake_sglang.url, control_timeout_s=0.01))
    uri = str(make_adapter(tmp_path / "v1"))
    policy = PolicyRef(lineage_id=new_id(), version=1, kind=PolicyKind.LORA, uri=uri)
    assert await engine.load(policy) >= 500
    await engine.close()


async def test_full_weights_resume_the_engine_even_when_refused(
    engine: SglangEngine, fake_sglang: FakeSglang
) -> None:
    policy = PolicyRef(lineage_id=new_id(), version=1, kind=PolicyKind.FULL, uri="/missing")
    with pytest.raises(EngineRejected, match="weights iterator"):
        await engine.load(policy)
    assert ids_of(await collect(engine, ask()))


async def test_the_key_is_sent() -> None:
    seen: list[str | None] = []

    async def info(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"data": [], "loads": []})

    app = web.Application()
    app.add_routes([web.get(path, info) for path in ("/model_info", "/v1/models", "/v1/loads")])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    engine = SglangEngine(
        EngineSettings(url=f"http://127.0.0.1:{port}/", api_key=SecretStr("letmein"))
    )
    status = await engine.status()
    await engine.close()
    await runner.cleanup()
    assert seen == ["Bearer letmein"] * 3
    assert (status.context_length, status.max_total_tokens, status.supports_lora) == (
        None,
        None,
        False,
    )


async def test_an_adapter_that_was_unloaded_comes_back_by_its_name(
    engine: SglangEngine, tmp_path: Path
) -> None:
    """Why a version's name is never used for other weights."""
    policy = PolicyRef(
        lineage_id=new_id(),
        version=1,
        kind=PolicyKind.LORA,
        uri=str(make_adapter(tmp_path / "a")),
    )
    await engine.load(policy)
    scores = await engine.score(PROMPT, 1, policy)
    await engine.unload(policy)
    assert await engine.score(PROMPT, 1, policy) == scores
    assert policy.adapter in (await engine.status()).adapters
