"""`n` above 1: every choice a turn of its own, all siblings under one parent."""

from __future__ import annotations

import asyncio
from uuid import UUID

import aiohttp
import openai
import pytest

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


async def test_choices_stream_side_by_side(gateway: Gateway) -> None:
    gateway.engine.chunk_delay_s = 0.01
    for text in SAID:
        gateway.says(text)
    said: dict[int, str] = {}
    finishes: list[tuple[int, str]] = []
    order: list[int] = []
    async with gateway.client() as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=ASK,
            n=3,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in dict(finishes), "nothing follows a choice's finish"
            said[choice.index] = said.get(choice.index, "") + (choice.delta.content or "")
            if choice.delta.content:
                order.append(choice.index)
            if choice.finish_reason:
                finishes.append((choice.index, choice.finish_reason))
    turns = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert [said[index] for index in range(3)] == [turn["reply"]["content"] for turn in turns]
    assert sorted(said.values()) == sorted(SAID)
    assert sorted(finishes) == [(0, "stop"), (1, "stop"), (2, "stop")]
    assert order != sorted(order), "the choices were sent one after the other"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == sum(turn["completion_len"] for turn in turns)
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{turns[0]['id'].hex}"}


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


async def test_a_client_that_leaves_aborts_every_choice(gateway: Gateway) -> None:
    gateway.engine.chunk_delay_s = 0.05
    for _ in range(3):
        gateway.says("fox " * 100)
    body = {"model": "tiny", "messages": ASK, "n": 3, "stream": True}
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer:
            await answer.content.readline()
            async with asyncio.timeout(20):
                while len(gateway.engine.requests) < 3:
                    await asyncio.sleep(0.01)
            # Every choice has sampled something, so that each has a turn to keep.
            await asyncio.sleep(0.3)
        async with asyncio.timeout(20):
            while len(gateway.engine.aborted) < 3:
                await asyncio.sleep(0.02)
            while len(turns := await gateway.rows("SELECT * FROM turns")) < 3:
                await asyncio.sleep(0.02)
    assert {turn["finish_reason"] for turn in turns} == {"abort"}
    assert {turn["untrainable_reason"] for turn in turns} == {"aborted"}
    assert {UUID(rid) for rid in gateway.engine.aborted} == {turn["id"] for turn in turns}


async def test_one_choice_that_fails_ends_all(gateway: Gateway) -> None:
    gateway.engine.faults.die_after = 2
    for _ in range(2):
        gateway.says("the quick brown fox jumps over the lazy dog")
    async with gateway.client() as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="tiny", messages=ASK, n=2)
    assert caught.value.status_code == 503
    async with asyncio.timeout(20):
        while len(turns := await gateway.rows("SELECT * FROM turns")) < 2:
            await asyncio.sleep(0.02)
    assert {turn["finish_reason"] for turn in turns} == {"abort"}


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
