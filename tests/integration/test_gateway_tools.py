"""One tool call at most, without a grammar: sampling stops where the first call ends."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from tests.dialects import DIALECTS, events_of
from tests.fixtures_gateway import Gateway

ASK = [{"role": "user", "content": "The quick brown fox?"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather"}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("parallel", "cities"), [(False, ["Oslo"]), (True, ["Oslo", "Paris"])])
async def test_calls(calling: Gateway, stream: bool, parallel: bool, cities: list[str]) -> None:
    calling.says("\n".join(CALL % city for city in ("Oslo", "Paris")))
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": ASK,
        "tools": TOOLS,
        "parallel_tool_calls": parallel,
    }
    async with calling.client() as client:
        if stream:
            async with client.chat.completions.stream(**asked) as events:
                reply: Any = await events.get_final_completion()
        else:
            reply = await client.chat.completions.create(**asked)
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls"
    arguments = [call.function.arguments for call in choice.message.tool_calls]
    assert arguments == [f'{{"city": "{city}"}}' for city in cities]
    params = calling.engine.requests[-1]["sampling_params"]
    assert params.get("stop", []) == ([] if parallel else ["</tool_call>"])
    assert "structural_tag" not in params
    [turn] = await calling.rows("SELECT trainable, stream_mismatch FROM turns")
    assert (turn["trainable"], turn["stream_mismatch"]) == (True, False)


async def test_a_forced_call_is_asked_of_the_engine(calling: Gateway) -> None:
    calling.says(CALL % "Oslo")
    async with calling.client() as client:
        reply: Any = await client.chat.completions.create(
            model="tiny",
            messages=ASK,  # type: ignore[arg-type]
            tools=TOOLS,  # type: ignore[arg-type]
            tool_choice="required",
        )
    assert "get_weather" in calling.engine.requests[-1]["sampling_params"]["structural_tag"]
    assert reply.choices[0].finish_reason == "tool_calls"
    [turn] = await calling.rows("SELECT trainable, untrainable_reason FROM turns")
    assert (turn["trainable"], turn["untrainable_reason"]) == (False, "grammar")


#: How each dialect offers a tool, and forbids that it is called.
FORBIDDEN: dict[str, dict[str, Any]] = {
    "openai_chat": {"tools": TOOLS, "tool_choice": "none"},
    "openai_responses": {
        "tools": [{"type": "function", "name": "get_weather"}],
        "tool_choice": "none",
    },
    "anthropic_messages": {
        "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "none"},
    },
}


@pytest.mark.parametrize("stream", [False, True])
async def test_where_no_call_is_allowed_there_is_none(calling: Gateway, stream: bool) -> None:
    """What a model writes all the same is text, as it is, and nobody runs it."""
    headers = {"authorization": f"Bearer {calling.keys.agent}"}
    async with aiohttp.ClientSession(calling.url, headers=headers) as http:
        for dialect in DIALECTS:
            if (forbidden := FORBIDDEN.get(dialect.name)) is None:
                continue
            calling.says(CALL % "Oslo")
            body = dialect.body(stream=stream, **forbidden)
            async with http.post(dialect.path, json=body) as answer:
                text = await answer.text()
                assert answer.status == 200, text
            events = events_of(text) if stream else [json.loads(text)]
            assert dialect.text(events) == CALL % "Oslo"
            assert dialect.ends(events) in (["stop"], ["completed"], ["end_turn"])
    turns = await calling.rows("SELECT reply, finish_reason, trainable FROM turns")
    assert len(turns) == len(FORBIDDEN)
    for turn in turns:
        assert "tool_calls" not in turn["reply"]
        assert (turn["finish_reason"], turn["trainable"]) == ("stop", True)


async def test_of_the_tools_that_may_be_called_the_model_knows_no_others(calling: Gateway) -> None:
    """A reply need not be a call, and none of it is forced, so that it can be learned from."""
    names = ("look", "get_weather", "buy")
    told = [{"name": name, "parameters": {"type": "object"}} for name in names]
    some = [{"name": name} for name in ("get_weather", "look")]
    calling.says("Warm.")
    calling.says(CALL % "Oslo")
    async with calling.client() as client:
        chat = await client.chat.completions.create(
            model="tiny",
            messages=ASK,  # type: ignore[arg-type]
            tools=[{"type": "function", "function": one} for one in told],  # type: ignore[arg-type]
            tool_choice={  # type: ignore[arg-type]
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": one} for one in some],
                },
            },
        )
        choice: Any = {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", **one} for one in some],
        }
        tools: Any = [{"type": "function", **one} for one in told]
        response = await client.responses.create(
            model="tiny", input="The quick brown fox?", tools=tools, tool_choice=choice
        )
    assert chat.choices[0].message.content == "Warm."
    [item] = response.output
    assert item.type == "function_call"
    # A response repeats what was asked.
    assert [tool.to_dict()["name"] for tool in response.tools] == list(names)
    assert response.to_dict()["tool_choice"] == choice
    turns = await calling.rows("SELECT tools, trainable, untrainable_reason FROM turns ORDER BY id")
    for turn in turns:
        assert [tool["function"]["name"] for tool in turn["tools"]] == ["look", "get_weather"]
        assert (turn["trainable"], turn["untrainable_reason"]) == (True, None)
    for asked in calling.engine.requests:
        assert "structural_tag" not in asked["sampling_params"]
