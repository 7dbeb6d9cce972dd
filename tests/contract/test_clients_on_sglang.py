"""The official clients over the real engine: a call, its result, and a reply, in each API.

A model of random weights says anything, so the first reply is made to be a call, and what is
checked is that client, gateway and engine tell the same of it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clients import client_python, npm_client, run_client, run_node
from tests.running import Gateway, as_stored, gateway_over

pytestmark = pytest.mark.sglang

CITIES = ("Oslo", "Bergen")


@pytest.fixture
async def gateway(
    database_url: str, tiny_model: Path, sglang_url: str, tmp_path: Path
) -> AsyncIterator[Gateway]:
    async with gateway_over(database_url, tiny_model, sglang_url, tmp_path) as running:
        yield running


async def session(gateway: Gateway, client: str, doing: str) -> Any:
    environ = {
        "OPENAI_BASE_URL": f"{gateway.url}/v1",
        "OPENAI_API_KEY": gateway.keys.agent,
        "ANTHROPIC_BASE_URL": gateway.url,
        "ANTHROPIC_API_KEY": gateway.keys.agent,
        "FORCED": "yes",
    }
    if client == "node":
        modules = await asyncio.to_thread(npm_client, "openai-node")
        return await run_node(modules, "openai_node.mjs", doing, **environ)
    python = await asyncio.to_thread(client_python, client)
    return await run_client(python, f"{client}_session.py", doing, **environ)


def called(api: str, reply: Mapping[str, Any]) -> tuple[str, str, Any]:
    """(id, name, arguments) of the one call of a reply, and that it says why it ended."""
    if api == "chat":
        [choice] = reply["choices"]
        assert choice["finish_reason"] == "tool_calls"
        [call] = choice["message"]["tool_calls"]
        return call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])
    if api == "responses":
        assert reply["status"] == "completed"
        [call] = [item for item in reply["output"] if item["type"] == "function_call"]
        return call["call_id"], call["name"], json.loads(call["arguments"])
    assert reply["stop_reason"] == "tool_use"
    [call] = [block for block in reply["content"] if block["type"] == "tool_use"]
    return call["id"], call["name"], call["input"]


def text_of(api: str, reply: Mapping[str, Any]) -> str:
    if api == "chat":
        return reply["choices"][0]["message"]["content"] or ""
    if api == "responses":
        parts = [part for item in reply["output"] for part in item.get("content") or ()]
        return "".join(part["text"] for part in parts)
    return "".join(block["text"] for block in reply["content"] if block["type"] == "text")


def counted(reply: Mapping[str, Any]) -> tuple[int, int]:
    usage = reply["usage"]
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    cached = usage.get("cache_read_input_tokens") or 0
    return usage["input_tokens"] + cached, usage["output_tokens"]


#: What a stream must have told of the call, where the client names its events.
DELTAS = {
    "chat": "tool_calls.function.arguments.delta",
    "responses": "response.function_call_arguments.delta",
    "messages": "input_json",
}
SESSIONS = [
    ("openai", "chat", "chat"),
    ("openai", "chat_streamed", "chat"),
    ("openai", "responses", "responses"),
    ("openai", "responses_streamed", "responses"),
    ("node", "chat", "chat"),
    ("node", "responses", "responses"),
    ("anthropic", "plain", "messages"),
    ("anthropic", "streamed", "messages"),
]


@pytest.mark.parametrize(("client", "doing", "api"), SESSIONS)
async def test_a_call_and_what_follows_it(
    gateway: Gateway, client: str, doing: str, api: str
) -> None:
    seen = await session(gateway, client, doing)
    one, two, *more = await gateway.rows("SELECT * FROM turns ORDER BY id")
    check_call(api, seen["first"], one)
    assert DELTAS[api] in seen.get("kinds", DELTAS.values())
    assert len(more) == (doing == "responses" and client == "openai")
    check_follows(one, two)
    # A bare stream of this API comes without a whole.
    said = seen["text"] if seen.get("last") is None else text_of(api, seen["last"])
    assert as_stored(said) == (two["reply"]["content"] or "")
    if seen.get("last") is not None:
        assert counted(seen["last"]) == (two["prompt_len"], two["completion_len"])
    assert 1 <= two["completion_len"] <= 24


async def test_the_tool_runner_runs_the_call(gateway: Gateway) -> None:
    messages = (await session(gateway, "anthropic", "runner"))["messages"]
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    for message, turn in zip(messages, (one, two), strict=True):
        check_call("messages", message, turn)
    check_follows(one, two)


async def test_what_a_schema_forces_is_parsed_into_models(gateway: Gateway) -> None:
    """By chat, by a response, and as the arguments of a call."""
    found = await session(gateway, "openai", "parsed")
    turns = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert len(turns) == len(found) == 3
    said = [turn["reply"]["content"] for turn in turns[:2]]
    [call] = turns[2]["reply"]["tool_calls"]
    for one, text in zip(found, [*said, call["function"]["arguments"]], strict=True):
        assert (one["city"] in CITIES, one["degrees"] in (20, 21)) == (True, True)
        assert json.loads(text) == one
    assert [turn["untrainable_reason"] for turn in turns] == ["grammar"] * 3
    assert [turn["stream_mismatch"] for turn in turns] == [False] * 3


async def test_a_call_of_the_old_form_and_its_result(gateway: Gateway) -> None:
    seen = await session(gateway, "openai", "functions")
    one, two, three = await gateway.rows("SELECT * FROM turns ORDER BY id")
    [first] = seen["first"]["choices"]
    [call] = one["reply"]["tool_calls"]
    assert first["finish_reason"] == "function_call"
    assert first["message"]["function_call"] == call["function"]
    check_follows(one, two)
    [last] = seen["last"]["choices"]
    assert as_stored(last["message"]["content"]) == (two["reply"]["content"] or "")
    [call] = three["reply"]["tool_calls"]
    assert [part["name"] for part in seen["parts"] if "name" in part] == ["get_weather"]
    assert "".join(part["arguments"] for part in seen["parts"]) == call["function"]["arguments"]


async def test_several_prompts_of_one_request(gateway: Gateway) -> None:
    """Each repeated before what was sampled after it, whole and streamed."""
    seen = await session(gateway, "openai", "prompts")
    turns = await gateway.rows("SELECT * FROM turns ORDER BY created_at, id")
    assert len(turns) == 8
    said: dict[str, list[str]] = {"Hello": [], "Weather?": []}
    for turn in turns:
        [part] = turn["messages"][0]["content"]
        said[part["text"]].append(part["text"] + (turn["reply"]["content"] or ""))
        assert (turn["trainable"], turn["stream_mismatch"]) == (True, False)
    whole = [choice["text"] for choice in seen["whole"]["choices"]]
    for prompt, at in (("Hello", slice(0, 2)), ("Weather?", slice(2, 4))):
        assert [as_stored(text) for text in whole[at] + seen["texts"][at]] == said[prompt]
    assert seen["finishes"] == [0, 1, 2, 3]


#: What each client calls an error, and its status.
ERRORS = {
    "key": ("AuthenticationError", 401),
    "model": ("NotFoundError", 404),
    "length": ("BadRequestError", 400),
    "range": ("BadRequestError", 400),
}


@pytest.mark.parametrize(
    ("client", "apis"), [("openai", ("chat ", "responses ", "completions ")), ("anthropic", ("",))]
)
async def test_each_protocol_has_its_own_errors(
    gateway: Gateway, client: str, apis: tuple[str, ...]
) -> None:
    seen = await session(gateway, client, "errors")
    assert {name: (error["class"], error["status"]) for name, error in seen.items()} == {
        f"{api}{name}": error for api in apis for name, error in ERRORS.items()
    }
    assert all(error["request_id"] for error in seen.values())
    for api in apis:
        message = seen[f"{api}length"]["message"]
        counts = [int(number) for number in re.findall(r"\d+", message)]
        # What the context holds, and what the prompt alone would take of it: 18,000 words.
        assert any(2000 <= count <= 2048 for count in counts), message
        assert any(count > 18_000 for count in counts), message
    assert await gateway.rows("SELECT 1 FROM turns") == []


def check_call(api: str, reply: Mapping[str, Any], turn: Mapping[str, Any]) -> None:
    """What the client has of the call is what was sampled and stored."""
    id_, name, arguments = called(api, reply)
    [stored] = turn["reply"]["tool_calls"]
    assert (stored["id"], stored["function"]["name"]) == (id_, name) == (id_, "get_weather")
    assert json.loads(stored["function"]["arguments"]) == arguments
    assert arguments["city"] in CITIES
    assert counted(reply) == (turn["prompt_len"], turn["completion_len"])
    assert (turn["finish_reason"], turn["untrainable_reason"]) == ("tool_calls", "grammar")
    assert len(turn["logprobs"]) == len(turn["sampled_ids"]) == 4 * turn["completion_len"]


def check_follows(one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
    """The result of the call extends the ids of its turn."""
    assert (two["parent_id"], two["session_id"]) == (one["id"], one["session_id"])
    assert two["branch_reason"] is None
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
    assert (one["stream_mismatch"], two["stream_mismatch"]) == (False, False)
    [result] = [message for message in two["messages"] if message["role"] == "tool"]
    city = json.loads(one["reply"]["tool_calls"][0]["function"]["arguments"])["city"]
    assert result["content"] == f"{city}: 21"
