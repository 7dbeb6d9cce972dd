"""The gateway over the real engine and a tiny model: what only the real one can enforce."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.running import Gateway, gateway_over

pytestmark = pytest.mark.sglang

ASK = [{"role": "user", "content": "The quick brown fox?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "animal": {"enum": ["fox", "dog"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["animal", "legs"],
    "additionalProperties": False,
}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}


@pytest.fixture
async def gateway(
    database_url: str, tiny_model: Path, sglang_url: str, tmp_path: Path
) -> AsyncIterator[Gateway]:
    async with gateway_over(database_url, tiny_model, sglang_url, tmp_path) as running:
        yield running


def is_animal(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"animal", "legs"} and (
        value["animal"] in ("fox", "dog") and value["legs"] in range(10)
    )


async def test_a_schema_is_kept(gateway: Gateway) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
    async with gateway.client() as client:
        reply = await client.chat.completions.create(
            model="tiny", messages=ASK, response_format=form, n=2, max_tokens=400, seed=3
        )
    for choice in reply.choices:
        assert choice.finish_reason == "stop"
        assert is_animal(choice.message.content or "")
    rows = await gateway.rows("SELECT trainable, untrainable_reason FROM turns")
    assert [(row["trainable"], row["untrainable_reason"]) for row in rows] == [
        (False, "grammar"),
        (False, "grammar"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tool_that_is_named_is_called(gateway: Gateway, stream: bool) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": ASK,
        "tools": [tool("look"), tool("feed")],
        "tool_choice": {"type": "function", "function": {"name": "feed"}},
        "parallel_tool_calls": False,
        "max_tokens": 600,
        "seed": 5,
    }
    async with gateway.client() as client:
        if stream:
            async with client.chat.completions.stream(**asked) as events:
                reply: Any = await events.get_final_completion()
        else:
            reply = await client.chat.completions.create(**asked)
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name == "feed"
    assert is_animal(call.function.arguments)
    assert not choice.message.content
    [row] = await gateway.rows("SELECT untrainable_reason, stream_mismatch FROM turns")
    assert (row["untrainable_reason"], row["stream_mismatch"]) == ("grammar", False)


async def test_some_tool_is_called_where_one_is_required(gateway: Gateway) -> None:
    async with gateway.client() as client:
        reply = await client.chat.completions.create(
            model="tiny",
            messages=ASK,
            tools=[tool("look"), tool("feed")],  # type: ignore[list-item]
            tool_choice="required",
            max_tokens=1500,
            seed=11,
        )
    calls: list[Any] = reply.choices[0].message.tool_calls or []
    assert calls
    assert {call.function.name for call in calls} <= {"look", "feed"}
    # The last of many may be cut by the limit.
    assert all(is_animal(call.function.arguments) for call in calls[:1])


async def test_a_schema_that_cannot_be_kept_is_the_clients_error(gateway: Gateway) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}}
    form = {"type": "json_schema", "json_schema": {"name": "bad", "schema": schema}}
    async with gateway.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="tiny",
                messages=ASK,  # type: ignore[arg-type]
                response_format=form,  # type: ignore[arg-type]
            )
    assert caught.value.param == "response_format"


async def test_a_sampled_token_is_among_the_likeliest(gateway: Gateway) -> None:
    async with gateway.client() as client:
        chunks = await client.chat.completions.create(
            model="tiny",
            messages=ASK,  # type: ignore[arg-type]
            logprobs=True,
            top_logprobs=4,
            temperature=0,
            max_tokens=6,
            stream=True,
        )
        parts = [chunk.choices[0].logprobs async for chunk in chunks]
    tokens = [token for part in parts if part for token in part.content or ()]
    assert tokens
    for token in tokens:
        values = [other.logprob for other in token.top_logprobs]
        assert len(values) == 4
        assert values == sorted(values, reverse=True)
        # Nothing is likelier than the token that greedy sampling takes.
        assert (token.top_logprobs[0].bytes, values[0]) == (token.bytes, token.logprob)


async def test_a_response_is_read_again_to_the_last_digit(gateway: Gateway) -> None:
    """What the engine says is of 32 bits, and so is what is stored."""
    async with gateway.client() as client:
        for stream in (True, False):
            asked: Any = {"model": "tiny", "input": "The quick brown fox?", "stream": stream}
            asked |= {"include": ["message.output_text.logprobs"], "top_logprobs": 4}
            asked |= {"temperature": 0, "max_output_tokens": 6}
            reply = await client.responses.create(**asked)
            if stream:
                reply = [event async for event in reply][-1].response
            [part] = reply.output[0].content
            assert part.logprobs
            assert [len(token.top_logprobs) for token in part.logprobs] == [4] * len(part.logprobs)
            stored = await client.responses.retrieve(reply.id)
            assert stored.to_dict() == reply.to_dict()
