"""The completions API with the official client, a real Postgres, a fake engine."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.fixtures_gateway import Gateway


async def test_a_prompt_is_given_as_it_stands(gateway: Gateway) -> None:
    ids = gateway.says("jumps over")
    async with gateway.client() as client:
        reply = await client.completions.create(
            model="tiny", prompt="The quick brown fox", logprobs=1, max_tokens=30
        )
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("jumps over", "stop")
    seen = gateway.engine.requests[-1]["input_ids"]
    tokenizer = gateway.services.tokenizer
    assert tokenizer.decode(seen) == "The quick brown fox"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(seen), len(ids))
    assert reply.choices[0].logprobs is not None
    assert len(reply.choices[0].logprobs.token_logprobs or []) == len(ids)
    [turn] = await gateway.rows("SELECT * FROM turns")
    assert reply.id == f"cmpl-{turn['id'].hex}"
    assert (turn["dialect"], turn["parent_id"], turn["trainable"]) == (
        "openai_completions", None, True,
    )  # fmt: skip
    assert turn["prompt_ids"] == b"".join(id_.to_bytes(4, "little") for id_ in seen)
    assert turn["messages"][0]["content"] == [{"type": "prompt", "text": "The quick brown fox"}]


async def test_ids_and_a_stream_of_two_choices(gateway: Gateway) -> None:
    prompt = gateway.services.tokenizer.encode("The quick brown fox")
    gateway.says("one")
    gateway.says("two")
    async with gateway.client() as client:
        stream = await client.completions.create(
            model="tiny", prompt=prompt, n=2, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert all(request["input_ids"] == prompt for request in gateway.engine.requests)
    texts = {0: "", 1: ""}
    finishes = []
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            finishes += [choice.index] if choice.finish_reason else []
    assert sorted(texts.values()) == ["one", "two"]
    assert sorted(finishes) == [0, 1]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == len(prompt)


async def test_a_chat_does_not_continue_a_prompt(gateway: Gateway) -> None:
    gateway.says("dog")
    gateway.says("cat")
    async with gateway.client() as client:
        await client.completions.create(model="tiny", prompt="Hello")
        told: list[Any] = [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "dog"},
            {"role": "user", "content": "More"},
        ]
        await client.chat.completions.create(model="tiny", messages=told)
    turns = await gateway.rows("SELECT parent_id FROM turns ORDER BY id")
    assert [turn["parent_id"] for turn in turns] == [None, None]


@pytest.mark.parametrize("prompt", [[10**9], [-1], [1, 2, 2**80]])
async def test_ids_that_the_model_does_not_have(gateway: Gateway, prompt: list[int]) -> None:
    async with gateway.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="tiny", prompt=prompt)
    assert caught.value.param == "prompt"
    assert gateway.engine.requests == []


async def test_a_prompt_that_is_too_long_says_both_numbers(gateway: Gateway) -> None:
    async with gateway.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="tiny", prompt="a b " * 9000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
