"""`n` above 1: every choice a turn of its own, all siblings under one parent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from tests.dialects import events_of
from tests.fakes import Turnstile
from tests.fixtures_gateway import Gateway

ASK = [{"role": "user", "content": "The quick brown fox?"}]
SAID = ["fox", "the lazy dog", "Paris"]


async def test_every_choice_is_a_turn_and_what_groups_them_is_stored(gateway: Gateway) -> None:
    sizes = {text: len(gateway.says(text)) for text in SAID}
    async with gateway.client() as client:
        reply = await client.chat.completions.create(model="tiny", messages=ASK, n=3, seed=7)
        turns = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert sorted(str(choice.message.content) for choice in reply.choices) == sorted(SAID)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in reply.choices} == {"stop"}
    assert [turn["reply"]["content"] for turn in turns] == [
        choice.message.content for choice in reply.choices
    ]
    assert reply.id == f"chatcmpl-{turns[0]['id'].hex}"
    for column in ("request_hash", "parent_id", "session_id", "created_at", "prompt_ids"):
        assert len({turn[column] for turn in turns}) == 1, column
    assert len({turn["chain_hash"] for turn in turns}) == 3
    assert [turn["depth"] for turn in turns] == [0, 0, 0]
    assert all(turn["trainable"] for turn in turns)
    assert [turn["sampling"]["seed"] for turn in turns] == [7, 8, 9]
    assert len({request["rid"] for request in gateway.engine.requests}) == 3
    usage = reply.usage
    assert usage is not None
    assert usage.prompt_tokens == turns[0]["prompt_len"]
    assert usage.completion_tokens == sum(sizes.values())
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(gateway.url, headers=headers) as session:
        yield session


async def each_begun(
    answer: aiohttp.ClientResponse, gate: Turnstile, count: int
) -> list[dict[str, Any]]:
    """Events up to the first words of the last choice, when each has one token sampled."""
    await gate.let(count)
    events: list[dict[str, Any]] = []
    while len({choice["index"] for event in events for choice in spoken(event)}) < count:
        line = await answer.content.readline()
        assert line, events
        events += events_of(line.decode())
    return events


def spoken(event: dict[str, Any]) -> list[dict[str, Any]]:
    return [choice for choice in event["choices"] if choice["delta"].get("content")]


async def test_choices_stream_side_by_side(http: aiohttp.ClientSession, gateway: Gateway) -> None:
    gateway.engine.turnstile = gate = Turnstile()
    for text in SAID:
        gateway.says(text)
    body = {"model": "tiny", "messages": ASK, "n": 3, "stream": True}
    options = {"stream_options": {"include_usage": True}}
    async with http.post("/v1/chat/completions", json=body | options) as answer:
        events = await each_begun(answer, gate, 3)
        assert not any(choice["finish_reason"] for e in events for choice in e["choices"])
        gateway.engine.turnstile = None
        for _ in range(100):
            gate.release()
        events += events_of((await answer.content.read()).decode())
    said: dict[int, str] = {}
    finishes: list[tuple[int, str]] = []
    for event in events:
        for choice in event["choices"]:
            index, delta = choice["index"], choice["delta"]
            assert index not in dict(finishes), "nothing follows a choice's finish"
            said[index] = said.get(index, "") + (delta.get("content") or "")
            if choice["finish_reason"]:
                finishes.append((index, choice["finish_reason"]))
    turns = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert [said[index] for index in range(3)] == [turn["reply"]["content"] for turn in turns]
    assert sorted(said.values()) == sorted(SAID)
    assert sorted(finishes) == [(0, "stop"), (1, "stop"), (2, "stop")]
    usage = events[-1]["usage"]
    assert usage["completion_tokens"] == sum(turn["completion_len"] for turn in turns)
    assert {event["id"] for event in events} == {f"chatcmpl-{turns[0]['id'].hex}"}


async def test_the_choice_that_is_continued_has_the_next_state(gateway: Gateway) -> None:
    for text in [*SAID, "dog"]:
        gateway.says(text)
    async with gateway.client() as client:
        first = await client.chat.completions.create(model="tiny", messages=ASK, n=3)
        chosen = first.choices[1].message.content
        told = [
            *ASK,
            {"role": "assistant", "content": chosen},
            {"role": "user", "content": "brown"},
        ]
        second = await client.chat.completions.create(model="tiny", messages=told)  # type: ignore[arg-type]
    turns = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert turns[3]["id"] == UUID(second.id.removeprefix("chatcmpl-"))
    assert turns[3]["parent_id"] == turns[1]["id"]
    assert turns[3]["shared_len"] == turns[1]["prompt_len"] + turns[1]["completion_len"]
    states = await gateway.rows("SELECT turn_id FROM next_states")
    assert [state["turn_id"] for state in states] == [turns[1]["id"]]


async def test_a_client_that_leaves_aborts_every_choice(
    http: aiohttp.ClientSession, gateway: Gateway
) -> None:
    gateway.engine.turnstile = gate = Turnstile()
    for _ in range(3):
        gateway.says("fox " * 100)
    body = {"model": "tiny", "messages": ASK, "n": 3, "stream": True}
    async with http.post("/v1/chat/completions", json=body) as answer:
        # Every choice has sampled something, so that each has a turn to keep.
        await each_begun(answer, gate, 3)
    async with asyncio.timeout(120):
        while len(gateway.engine.aborted) < 3:
            await asyncio.sleep(0.02)
        while len(turns := await gateway.rows("SELECT * FROM turns")) < 3:
            await asyncio.sleep(0.02)
    assert {turn["finish_reason"] for turn in turns} == {"abort"}
    assert {turn["untrainable_reason"] for turn in turns} == {"aborted"}
    assert {UUID(rid) for rid in gateway.engine.aborted} == {turn["id"] for turn in turns}


@pytest.mark.parametrize("stream", [False, True])
async def test_one_choice_that_fails_ends_all(
    http: aiohttp.ClientSession, gateway: Gateway, stream: bool
) -> None:
    """The other one samples for as long as it is let."""
    gateway.engine.turnstile = gate = Turnstile()
    for text in ("fox fox", "dog " * 100):
        gateway.says(text)
    body = {"model": "tiny", "messages": ASK, "n": 2, "stream": stream}
    asked = asyncio.create_task(http.post("/v1/chat/completions", json=body))
    if stream:
        async with await asked as answer:
            await each_begun(answer, gate, 2)
            gateway.engine.faults.die_after = 1
            await gate.let(1)
            events = events_of((await answer.content.read()).decode())
        assert events[-1]["error"]["type"] == "server_error"
    else:
        await gate.let(2)
        gateway.engine.faults.die_after = 1
        await gate.let(1)
        async with await asked as answer:
            assert answer.status == 503
    # What had sampled nothing that the gateway saw has no turn.
    await gateway.all_aborted(2 if stream else 1)


async def test_the_session_ends_after_the_last_choice(gateway: Gateway) -> None:
    for text in SAID:
        gateway.says(text)
    async with gateway.client() as client:
        await client.chat.completions.create(
            model="tiny", messages=ASK, n=3, extra_headers={"X-Session-Done": "true"}
        )
    [session] = await gateway.rows("SELECT status, end_reason FROM sessions")
    assert (session["status"], session["end_reason"]) == ("closed", "client_done")
    verdicts = await gateway.rows("SELECT outcome, reason FROM verdicts")
    assert [(one["outcome"], one["reason"]) for one in verdicts] == [
        ("unscored", "no_next_state")
    ] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_likeliest_tokens_are_shown_if_asked_for(gateway: Gateway, stream: bool) -> None:
    ids = gateway.says("fox dog")
    tokenizer = gateway.services.tokenizer
    async with gateway.client() as client:
        if stream:
            chunks = await client.chat.completions.create(
                model="tiny", messages=ASK, logprobs=True, top_logprobs=3, stream=True
            )
            parts = [chunk.choices[0].logprobs async for chunk in chunks]
            tokens = [token for part in parts if part for token in part.content or ()]
        else:
            reply = await client.chat.completions.create(
                model="tiny", messages=ASK, logprobs=True, top_logprobs=3
            )
            assert reply.choices[0].logprobs is not None
            tokens = reply.choices[0].logprobs.content or []
    assert gateway.engine.requests[-1]["top_logprobs_num"] == 3
    # A stream ends with the text: the token that only ends it is in the whole reply alone.
    assert len(tokens) == len(ids) - stream
    for place, token in enumerate(tokens):
        assert token.bytes == list(tokenizer.bytes_of(ids[place]))
        assert [other.logprob for other in token.top_logprobs] == [-0.5, -1.5, -2.5]
        assert [other.bytes for other in token.top_logprobs] == [
            list(tokenizer.bytes_of(place + rank)) for rank in range(3)
        ]


async def test_none_are_asked_for_otherwise(gateway: Gateway) -> None:
    ids = gateway.says("fox")
    async with gateway.client() as client:
        reply = await client.chat.completions.create(model="tiny", messages=ASK, logprobs=True)
    assert "top_logprobs_num" not in gateway.engine.requests[-1]
    assert reply.choices[0].logprobs is not None
    assert [token.top_logprobs for token in reply.choices[0].logprobs.content or ()] == [[]] * len(
        ids
    )
