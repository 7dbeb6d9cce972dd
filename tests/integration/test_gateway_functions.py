"""The old `functions` of chat completions with the official client, over models that call tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

from gateway.config import Settings
from tests.fakes_openai import FakeOpenAI
from tests.fixtures_gateway import Gateway
from tests.running import Gateway as Running
from tests.running import gateway_values, make_keys, running_gateway

ASK: dict[str, Any] = {"role": "user", "content": "The quick brown fox?"}
LOOK = {"name": "get_weather", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>'


async def asked(gateway: Running, messages: list[Any], *, stream: bool, **more: Any) -> Any:
    """The one choice of a reply, put together where it comes as a stream."""
    fields: dict[str, Any] = {"functions": [LOOK], **more}
    async with gateway.client() as client:
        if not stream:
            reply = await client.chat.completions.create(model="tiny", messages=messages, **fields)
            return reply.choices[0]
        chunks = await client.chat.completions.create(
            model="tiny", messages=messages, stream=True, **fields
        )
        said, names, arguments, ends = "", [], "", []
        async for chunk in chunks:
            [choice] = chunk.choices
            said += choice.delta.content or ""
            assert choice.delta.tool_calls is None
            if (call := choice.delta.function_call) is not None:
                assert bool(call.name) is (not names), "the name comes first, and once"
                names += [call.name] if call.name else []
                arguments += call.arguments or ""
            ends += [choice.finish_reason] if choice.finish_reason else []
    [end] = ends
    message: dict[str, Any] = {"role": "assistant", "content": said or None}
    if names:
        message["function_call"] = {"name": names[0], "arguments": arguments}
    return Choice(index=0, finish_reason=end, message=ChatCompletionMessage.model_validate(message))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_call_and_its_result(calling: Gateway, stream: bool, calls: int) -> None:
    """No second call is sampled, and what follows goes on from the ids of the first."""
    calling.says("\n".join(CALL % city for city in ("Oslo", "Paris")[:calls]))
    calling.says("Warm.")
    first = await asked(calling, [ASK], stream=stream)
    assert first.finish_reason == "function_call"
    call = first.message.function_call
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Oslo"}')
    assert first.message.tool_calls is None
    result = {"role": "function", "name": "get_weather", "content": "20 C"}
    history = [ASK, first.message.to_dict(), result]
    second = await asked(calling, history, stream=stream)
    assert (second.finish_reason, second.message.content) == ("stop", "Warm.")
    one, two = await calling.rows("SELECT * FROM turns ORDER BY id")
    assert (one["trainable"], one["stream_mismatch"], one["finish_reason"]) == (
        True, False, "tool_calls",
    )  # fmt: skip
    assert [tool["function"] for tool in one["tools"]] == [LOOK]
    [stored] = one["reply"]["tool_calls"]
    assert stored["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert (two["parent_id"], two["kind"], two["branch_reason"]) == (one["id"], "main", None)
    assert two["resolve_rule"] == "prefix"
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
    [state] = await calling.rows("SELECT turn_id, role, messages FROM next_states")
    assert (state["turn_id"], state["role"]) == (one["id"], "tool")
    assert [message["content"] for message in state["messages"]] == ["20 C"]
    # The template sees what it would see of tools, behind what was sampled.
    decode = calling.services.tokenizer.decode
    text = decode(calling.engine.requests[1]["input_ids"])
    assert text == (
        decode(calling.engine.requests[0]["input_ids"])
        + CALL % "Oslo"
        + "<|im_end|>\n<|im_start|>tool\n20 C<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_history_that_is_new_here_is_rendered_as_one_of_tools(calling: Gateway) -> None:
    """The prompt is the same in both forms, but for ids, which this template does not show."""
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    old: list[Any] = [
        ASK,
        {"role": "assistant", "content": None, "function_call": function},
        {"role": "function", "name": "get_weather", "content": "20 C"},
    ]
    new: list[Any] = [
        ASK,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_a", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "20 C"},
    ]
    tool: Any = {"type": "function", "function": LOOK}
    for _ in range(2):
        calling.says("Warm.")
    async with calling.client() as client:
        await client.chat.completions.create(model="tiny", messages=old, functions=[LOOK])  # type: ignore[list-item]
        await client.chat.completions.create(model="tiny", messages=new, tools=[tool])
    first, second = calling.engine.requests
    assert first["input_ids"] == second["input_ids"]


async def test_which_function_is_called(calling: Gateway) -> None:
    calling.says(CALL % "Oslo")
    calling.says(CALL % "Oslo")
    named = await asked(calling, [ASK], stream=False, function_call={"name": "get_weather"})
    assert named.finish_reason == "function_call"
    none = await asked(calling, [ASK], stream=False, function_call="none")
    assert (none.finish_reason, none.message.content) == ("stop", CALL % "Oslo")
    assert none.message.function_call is None
    forced, free = calling.engine.requests
    assert "get_weather" in forced["sampling_params"]["structural_tag"]
    assert "structural_tag" not in free["sampling_params"]
    turns = await calling.rows("SELECT trainable, untrainable_reason FROM turns ORDER BY id")
    assert [tuple(turn.values()) for turn in turns] == [(False, "grammar"), (True, None)]


async def test_functions_and_tools_are_not_for_one_request(calling: Gateway) -> None:
    with pytest.raises(openai.BadRequestError, match="'tools'") as caught:
        await asked(calling, [ASK], stream=False, tools=[{"type": "function", "function": LOOK}])
    assert (caught.value.param, caught.value.status_code) == ("functions", 400)
    assert calling.engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_without_ids_is_asked_for_tools(
    database_url: str, tiny_model: Path, tmp_path: Path, stream: bool
) -> None:
    """Of the calls that it makes all the same the client is told the first."""
    calls = [
        {
            "index": index,
            "id": f"call_{index}",
            "function": {"name": "get_weather", "arguments": "{}"},
        }
        for index in (0, 1)
    ]
    keys = await make_keys(database_url, "tiny")
    async with FakeOpenAI() as upstream:
        upstream.replies.append(
            [*({"tool_calls": [call]} for call in calls), {"finish": "tool_calls"}]
        )
        values = gateway_values(database_url, tiny_model, "", tmp_path)
        values["engines"] = ({"kind": "openai", "url": upstream.url, "model": "theirs"},)
        async with running_gateway(Settings(**values), keys) as gateway:
            choice = await asked(
                gateway, [ASK], stream=stream, function_call={"name": "get_weather"}
            )
    assert choice.finish_reason == "function_call"
    assert (choice.message.function_call.name, choice.message.function_call.arguments) == (
        "get_weather", "{}",
    )  # fmt: skip
    [body] = upstream.requests
    tool = {"type": "function", "function": {"name": "get_weather"}}
    assert body["tools"] == [{"type": "function", "function": LOOK}]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == (tool, False)
    assert not {"functions", "function_call"} & body.keys()
