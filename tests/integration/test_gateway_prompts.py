"""Several prompts in one request, and prompts that are repeated, with the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import openai
import pytest

from gateway.config import KeyLimits, LimitSettings
from tests.dialects import events_of
from tests.fakes import Turnstile
from tests.fixtures_gateway import Gateway, fake_gateway

#: What the model says to each prompt.
SAID = {"The quick brown fox": "jumps over", "Hello": "Paris", "the lazy dog": "fox"}
PROMPTS = list(SAID)


def answers(gateway: Gateway, said: dict[str, str] = SAID) -> dict[str, list[int]]:
    """Have the model say something to each prompt; the ids of the prompts."""
    tokenizer = gateway.services.tokenizer
    stop = tokenizer.facts.stop_token_ids[0]
    ids = {prompt: list(tokenizer.encode(prompt, special=True)) for prompt in said}
    replies = {
        tuple(ids[prompt]): [*tokenizer.encode(reply), stop] for prompt, reply in said.items()
    }
    gateway.engine.script = lambda body: replies[tuple(body["input_ids"])]
    return ids


async def turns_of(gateway: Gateway) -> dict[str, list[dict[str, Any]]]:
    """The turns that are stored, by prompt, in the order of their choices."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in await gateway.rows("SELECT * FROM turns ORDER BY id"):
        [part] = row["messages"][0]["content"]
        found.setdefault(part["text"], []).append(dict(row))
    return found


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(gateway.url, headers=headers) as session:
        yield session


@pytest.mark.parametrize("as_ids", [False, True])
async def test_each_prompt_is_a_turn_of_its_own(gateway: Gateway, as_ids: bool) -> None:
    ids = answers(gateway)
    prompt: Any = list(ids.values()) if as_ids else PROMPTS
    async with gateway.client() as client:
        reply = await client.completions.create(
            model="tiny", prompt=prompt, n=2, best_of=2, seed=5, max_tokens=30
        )
    turns = await turns_of(gateway)
    assert [(one.index, one.text, one.finish_reason) for one in reply.choices] == [
        (index, SAID[prompt], "stop")
        for index, prompt in enumerate(prompt for prompt in PROMPTS for _ in (0, 1))
    ]
    assert {prompt: len(rows) for prompt, rows in turns.items()} == dict.fromkeys(PROMPTS, 2)
    assert reply.id == f"cmpl-{turns[PROMPTS[0]][0]['id'].hex}"
    rows = [row for prompt in PROMPTS for row in turns[prompt]]
    assert len({row["session_id"] for row in rows}) == len({row["request_hash"] for row in rows})
    assert len({row["session_id"] for row in rows}) == len(PROMPTS)
    assert [row["sampling"]["seed"] for row in rows] == [5, 6, 7, 8, 9, 10]
    for row in rows:
        assert (row["parent_id"], row["retry_of"], row["trainable"]) == (None, None, True)
    usage = reply.usage
    assert usage is not None
    assert usage.prompt_tokens == sum(map(len, ids.values()))
    assert usage.completion_tokens == sum(row["completion_len"] for row in rows)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


async def test_equal_prompts_are_no_retries_of_one_another(gateway: Gateway) -> None:
    answers(gateway)
    async with gateway.client() as client:
        for _ in range(2):
            await client.completions.create(
                model="tiny", prompt=["Hello"] * 2, extra_headers={"idempotency-key": "k"}
            )
    rows = await gateway.rows("SELECT id, retry_of FROM turns ORDER BY id")
    assert [row["retry_of"] for row in rows[:2]] == [None, None]
    assert {row["retry_of"] for row in rows[2:]} == {row["id"] for row in rows[:2]}


async def test_a_stream_of_several_prompts(http: aiohttp.ClientSession, gateway: Gateway) -> None:
    gateway.engine.turnstile = gate = Turnstile()
    ids = answers(gateway)
    body = {"model": "tiny", "prompt": PROMPTS, "n": 2, "stream": True, "echo": True}
    options = {"stream_options": {"include_usage": True}}
    async with http.post("/v1/completions", json=body | options) as answer:
        await gate.let(6)
        events: list[dict[str, Any]] = []
        while not set(range(6)) <= {one["index"] for one in begun(events)}:
            line = await answer.content.readline()
            assert line, events
            events += events_of(line.decode())
        # All are told of side by side, and none has ended.
        assert not any(one["finish_reason"] for event in events for one in event["choices"])
        gateway.engine.turnstile = None
        for _ in range(200):
            gate.release()
        events += events_of((await answer.content.read()).decode())
    turns = await turns_of(gateway)
    texts, finishes = [""] * 6, list[int]()
    for event in events:
        for choice in event["choices"]:
            assert choice["index"] not in finishes, "nothing follows a choice's finish"
            texts[choice["index"]] += choice["text"]
            finishes += [choice["index"]] if choice["finish_reason"] else []
    assert texts == [prompt + SAID[prompt] for prompt in PROMPTS for _ in (0, 1)]
    assert sorted(finishes) == [0, 1, 2, 3, 4, 5]
    assert {event["id"] for event in events} == {f"cmpl-{turns[PROMPTS[0]][0]['id'].hex}"}
    usage = events[-1]["usage"]
    assert usage["prompt_tokens"] == sum(map(len, ids.values()))
    lengths = [row["completion_len"] for rows in turns.values() for row in rows]
    assert usage["completion_tokens"] == sum(lengths)


def begun(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was sampled, without the prompts that come before it."""
    choices = [choice for event in events for choice in event["choices"]]
    return [choice for choice in choices if choice["text"] not in PROMPTS]


@pytest.mark.parametrize("stream", [False, True])
async def test_one_prompt_that_fails_ends_all(
    http: aiohttp.ClientSession, gateway: Gateway, stream: bool
) -> None:
    """The other one samples for as long as it is let."""
    gateway.engine.turnstile = gate = Turnstile()
    answers(gateway, {"Hello": "fox fox fox", "the lazy dog": "dog " * 100})
    body = {"model": "tiny", "prompt": ["Hello", "the lazy dog"], "stream": stream}
    asked = asyncio.create_task(http.post("/v1/completions", json={**body, "max_tokens": 200}))
    await gate.let(2)
    if stream:
        async with await asked as answer:
            events: list[dict[str, Any]] = []
            while len({one["index"] for one in begun(events)}) < 2:
                line = await answer.content.readline()
                assert line, events
                events += events_of(line.decode())
            gateway.engine.faults.die_after = 1
            await gate.let(1)
            events += events_of((await answer.content.read()).decode())
        assert events[-1]["error"]["type"] == "server_error"
        assert not any(one["finish_reason"] for e in events[:-1] for one in e["choices"])
    else:
        gateway.engine.faults.die_after = 1
        await gate.let(1)
        async with await asked as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["type"] == "server_error"
    # What had sampled nothing that the gateway saw has no turn.
    await gateway.all_aborted(2 if stream else 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_one_prompt_that_is_too_long_is_told_as_any_other(
    gateway: Gateway, stream: bool
) -> None:
    answers(gateway)
    long = ["Hello", "a b " * 9000]
    async with gateway.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="tiny", prompt=long, stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="tiny", prompt=[[1], [10**9]])
        assert caught.value.param == "prompt"
        with pytest.raises(openai.BadRequestError, match="at most 8 choices"):
            await client.completions.create(model="tiny", prompt=["Hello"] * 3, n=3)


async def test_a_client_that_leaves_aborts_every_prompt(
    http: aiohttp.ClientSession, gateway: Gateway
) -> None:
    gateway.engine.turnstile = gate = Turnstile()
    answers(gateway, dict.fromkeys(PROMPTS, "fox " * 100))
    body = {"model": "tiny", "prompt": PROMPTS, "stream": True, "max_tokens": 300}
    async with http.post("/v1/completions", json=body) as answer:
        await gate.let(3)
        events: list[dict[str, Any]] = []
        while len({one["index"] for one in begun(events)}) < 3:
            line = await answer.content.readline()
            assert line, events
            events += events_of(line.decode())
    await gateway.until("SELECT 1 FROM turns HAVING count(*) = 3")
    turns = await gateway.rows("SELECT * FROM turns")
    assert {turn["untrainable_reason"] for turn in turns} == {"aborted"}
    async with asyncio.timeout(120):
        while len(gateway.engine.aborted) < 3:
            await asyncio.sleep(0.02)
    assert {UUID(rid) for rid in gateway.engine.aborted} == {turn["id"] for turn in turns}


async def test_a_session_ends_with_all_its_prompts(gateway: Gateway) -> None:
    answers(gateway)
    async with gateway.client() as client:
        await client.completions.create(
            model="tiny",
            prompt=PROMPTS,
            extra_headers={"X-Session-Id": "s", "X-Session-Done": "true"},
        )
    [session] = await gateway.rows("SELECT status, end_reason FROM sessions")
    assert (session["status"], session["end_reason"]) == ("closed", "client_done")
    verdicts = await gateway.rows("SELECT DISTINCT turn_id, reason FROM verdicts")
    assert [one["reason"] for one in verdicts] == ["no_next_state"] * len(PROMPTS)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tokens_of_every_prompt_are_counted(
    database_url: str, tiny_model: Path, tmp_path: Path, stream: bool
) -> None:
    own = KeyLimits(tokens_per_minute=10_000)
    limits = LimitSettings(keys={"one/agent": own})
    async with fake_gateway(database_url, tiny_model, tmp_path, limits=limits) as gateway:
        # What a key has left does not come back while a test is at it.
        gateway.services.limiter._clock = lambda: 0.0
        answers(gateway)
        headers = {"authorization": f"Bearer {gateway.keys.agent}"}
        body = {"model": "tiny", "prompt": PROMPTS, "n": 2, "stream": stream}
        options = {"stream_options": {"include_usage": True}} if stream else {}
        async with aiohttp.ClientSession(gateway.url, headers=headers) as http:
            async with http.post("/v1/completions", json=body | options) as answer:
                text = await answer.text()
            event = events_of(text)[-1] if stream else json.loads(text)
            gateway.says("fox")
            async with http.post("/v1/completions", json={**body, "prompt": "Hello"}) as answer:
                left = int(answer.headers["x-ratelimit-remaining-tokens"])
    assert left == 10_000 - event["usage"]["total_tokens"]


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_repeated_before_its_reply(
    gateway: Gateway, as_ids: bool, stream: bool
) -> None:
    ids = answers(gateway)
    prompt: Any = ids["Hello"] if as_ids else "Hello"
    async with gateway.client() as client:
        if stream:
            chunks = await client.completions.create(
                model="tiny", prompt=prompt, echo=True, stream=True
            )
            choices = [choice async for chunk in chunks for choice in chunk.choices]
            assert choices[0].text == "Hello"
            assert [one.finish_reason for one in choices if one.finish_reason] == ["stop"]
            text = "".join(choice.text for choice in choices)
        else:
            reply = await client.completions.create(model="tiny", prompt=prompt, echo=True)
            text = reply.choices[0].text
        assert text == "HelloParis"
        with pytest.raises(openai.BadRequestError, match="log-probabilities of a prompt") as caught:
            await client.completions.create(model="tiny", prompt=prompt, echo=True, logprobs=1)
    assert caught.value.param == "echo"
    # What is stored is what was sampled.
    [turn] = await gateway.rows("SELECT reply, completion_len FROM turns")
    assert turn["reply"]["content"] == "Paris"
