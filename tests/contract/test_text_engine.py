"""What every text engine does: held to by the client of OpenAI-compatible servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.config import EngineSettings
from gateway.engine.base import TextEngine
from gateway.engine.openai import OpenAIEngine
from gateway.errors import (
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
)
from gateway.records import (
    Delta,
    FinishReason,
    Sampling,
    TextChunk,
    TextGeneration,
    TurnRequest,
    Usage,
)
from tests.fakes_openai import FakeOpenAI, says
from tests.fixtures_engine import free_port

TOOL = {"type": "function", "function": {"name": "look"}}

#: As the fake upstream tells it.
USAGE = Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=3, reasoning_tokens=2)


def settings(url: str, **values: Any) -> EngineSettings:
    return EngineSettings(
        kind="openai", url=url, api_key=SecretStr("sk-theirs"), idle_timeout_s=0.5, **values
    )


@pytest.fixture
async def upstream() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as fake:
        yield fake


@pytest.fixture
async def engine(upstream: FakeOpenAI) -> AsyncIterator[TextEngine]:
    engine = OpenAIEngine(settings(upstream.url, model="their-model"))
    yield engine
    await engine.close()


def asked(seed: int | None = None, **values: Any) -> TextGeneration:
    values = {"sampling": Sampling(), **values}
    return TextGeneration(
        request=TurnRequest(
            dialect="openai_chat",
            model="ours",
            messages=({"role": "user", "content": "Hello?"},),
            **values,
        ),
        seed=seed,
    )


async def read(engine: TextEngine, request: TextGeneration) -> list[TextChunk]:
    async with aclosing(engine.generate(request)) as chunks:
        return [chunk async for chunk in chunks]


async def test_deltas_come_as_they_are_sent(upstream: FakeOpenAI, engine: TextEngine) -> None:
    upstream.replies.append([{"reasoning_content": "hm"}, *says("Good ", "day", reason="length")])
    *chunks, last = await read(engine, asked())
    assert [chunk.deltas for chunk in chunks] == [
        (Delta(reasoning="hm"),),
        (Delta(text="Good "),),
        (Delta(text="day"),),
    ]
    assert last.finish is not None
    assert last.finish.reason is FinishReason.LENGTH
    assert last.finish.usage == USAGE
    assert upstream.keys == ["Bearer sk-theirs"]


async def test_what_the_client_set_is_sent_and_nothing_else(
    upstream: FakeOpenAI, engine: TextEngine
) -> None:
    for _ in range(2):
        upstream.replies.append(says("ok"))
    await read(engine, asked())
    assert upstream.requests[0] == {
        "model": "their-model",
        "messages": [{"role": "user", "content": "Hello?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sampling = Sampling(
        temperature=0.5,
        stop=("x",),
        max_tokens=9,
        logit_bias={3: 1.0},
        grammar={"json_schema": '{"type":"string"}'},
    )
    await read(
        engine,
        asked(
            seed=4,
            sampling=sampling,
            tools=(TOOL,),
            tool_choice="required",
            allowed_tools=("look",),
            parallel_tool_calls=False,
        ),
    )
    sent = upstream.requests[1]
    assert {name: sent[name] for name in ("temperature", "stop", "max_tokens", "seed")} == {
        "temperature": 0.5,
        "stop": ["x"],
        "max_tokens": 9,
        "seed": 4,
    }
    assert sent["logit_bias"] == {"3": 1.0}
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "string"}
    assert sent["tools"] == [TOOL]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert sent["parallel_tool_calls"] is False


CALLS = [
    # As the OpenAI API has it: an index, arguments in pieces.
    [
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}]},
    ],
    # Whole calls without numbers, two in one event.
    [
        {
            "tool_calls": [
                {"id": "a", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"id": "b", "function": {"name": "g", "arguments": "{}"}},
            ]
        },
    ],
    # Numbers that do not begin at 0.
    [
        {"tool_calls": [{"index": 4, "id": "a", "function": {"name": "f"}}]},
        {"tool_calls": [{"index": 4, "function": {"arguments": '{"x":1}'}}]},
        {"tool_calls": [{"index": 7, "id": "b", "function": {"name": "g", "arguments": "{}"}}]},
    ],
]


@pytest.mark.parametrize("parts", CALLS)
async def test_calls_however_they_are_numbered(
    upstream: FakeOpenAI, engine: TextEngine, parts: list[dict[str, Any]]
) -> None:
    upstream.replies.append([*parts, {"finish": "tool_calls"}])
    chunks = await read(engine, asked(tools=(TOOL,)))
    deltas = [delta for chunk in chunks for delta in chunk.deltas]
    opened = [(d.call_index, d.call_id, d.call_name) for d in deltas if d.call_id is not None]
    assert opened == [(0, "a", "f"), (1, "b", "g")]
    for index, arguments in enumerate(['{"x":1}', "{}"]):
        assert "".join(d.arguments for d in deltas if d.call_index == index) == arguments
    assert chunks[-1].finish is not None
    assert chunks[-1].finish.reason is FinishReason.TOOL_CALLS


async def test_a_server_that_does_not_stream(upstream: FakeOpenAI, engine: TextEngine) -> None:
    upstream.whole = True
    upstream.replies.append(says("all at once"))
    [chunk] = await read(engine, asked())
    assert chunk.deltas == (Delta(text="all at once"),)
    assert chunk.finish is not None
    assert chunk.finish.usage == USAGE


@pytest.mark.parametrize("done", [True, False])
async def test_usage_that_is_not_told_is_not_made_up(
    upstream: FakeOpenAI, engine: TextEngine, done: bool
) -> None:
    upstream.usage, upstream.done = False, done
    upstream.replies.append(says("x"))
    finish = (await read(engine, asked()))[-1].finish
    assert finish is not None
    assert (finish.reason, finish.usage) == (FinishReason.STOP, None)


REFUSALS: list[tuple[int, Any, type[EngineError]]] = [
    (400, {"error": {"message": "context too long"}}, EngineRejected),
    (422, {"detail": "bad"}, EngineRejected),
    (401, {"error": {"message": "bad key"}}, EngineUnavailable),
    (404, {"error": {"message": "no such model"}}, EngineUnavailable),
    (429, {"error": "slow down"}, EngineOverloaded),
    (504, {}, EngineTimeout),
    (500, {"error": None}, EngineUnavailable),
]


@pytest.mark.parametrize(("status", "body", "kind"), REFUSALS)
async def test_refusals(
    upstream: FakeOpenAI, engine: TextEngine, status: int, body: Any, kind: type[EngineError]
) -> None:
    upstream.refuse.append((status, body))
    with pytest.raises(EngineError) as caught:
        await read(engine, asked())
    assert type(caught.value) is kind
    assert caught.value.engine == engine.name


async def test_a_stream_that_breaks_off(upstream: FakeOpenAI, engine: TextEngine) -> None:
    upstream.die_after = 1
    upstream.replies.append(says("half", "never"))
    with pytest.raises(EngineUnavailable):
        await read(engine, asked())


async def test_silence_has_an_end(upstream: FakeOpenAI, engine: TextEngine) -> None:
    upstream.hang = True
    with pytest.raises(EngineTimeout):
        await read(engine, asked())


async def test_closing_early_drops_the_stream(upstream: FakeOpenAI, engine: TextEngine) -> None:
    upstream.delay_s = 0.05
    upstream.replies.append(says(*"abcdefghijklmnopqrstuvwxyz"))
    async with aclosing(engine.generate(asked())) as chunks:
        await anext(chunks)
    async with asyncio.timeout(120):
        while not upstream.dropped:
            await asyncio.sleep(0.01)
    assert upstream.dropped == 1


@pytest.mark.parametrize("lists_models", [True, False])
async def test_status(upstream: FakeOpenAI, engine: TextEngine, lists_models: bool) -> None:
    upstream.lists_models = lists_models
    status = await engine.status()
    assert (status.ready, status.model) == (True, "their-model")


async def test_nobody_there() -> None:
    engine = OpenAIEngine(settings(f"http://127.0.0.1:{free_port()}/v1"))
    try:
        with pytest.raises(EngineUnavailable):
            await engine.status()
        with pytest.raises(EngineUnavailable):
            await read(engine, asked())
    finally:
        await engine.close()


@pytest.mark.sglang
async def test_a_real_server(sglang_url: str) -> None:
    engine = OpenAIEngine(
        EngineSettings(kind="openai", url=f"{sglang_url}/v1", model="tiny", idle_timeout_s=60)
    )
    try:
        assert (await engine.status()).ready
        chunks = await read(engine, asked(seed=1, sampling=Sampling(max_tokens=5, temperature=1)))
    finally:
        await engine.close()
    finish = chunks[-1].finish
    assert finish is not None
    assert finish.reason in (FinishReason.LENGTH, FinishReason.STOP)
    assert finish.usage is not None
    assert 1 <= finish.usage.completion_tokens <= 5
    assert finish.usage.prompt_tokens > 0
