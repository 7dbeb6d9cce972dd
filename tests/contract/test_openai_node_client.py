"""The official OpenAI client for Node, in an environment of its own, against a real socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import npm_client, run_node
from tests.fixtures_gateway import Gateway
from tests.reasoning import CALLS, DONE, reasoning_gateway

gateway = reasoning_gateway


@pytest.fixture(scope="session")
async def modules() -> Path:
    return await asyncio.to_thread(npm_client, "openai-node")


async def session(gateway: Gateway, modules: Path, doing: str) -> Any:
    return await run_node(
        modules,
        "openai_node.mjs",
        doing,
        OPENAI_BASE_URL=f"{gateway.url}/v1",
        OPENAI_API_KEY=gateway.keys.agent,
    )


async def two_turns(gateway: Gateway) -> list[dict[str, Any]]:
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert (two["parent_id"], two["branch_reason"], two["kind"]) == (one["id"], None, "main")
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
    assert [row["stream_mismatch"] for row in (one, two)] == [False, False]
    assert [message["content"] for message in two["messages"]] == ["Zürich: 21", "Oslo: 21"]
    return [one, two]


def check_chat(first: dict[str, Any], last: dict[str, Any]) -> None:
    [choice] = first["choices"]
    assert choice["finish_reason"] == "tool_calls"
    calls = choice["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [
        {"city": "Zürich"},
        {"city": "Oslo"},
    ]
    [choice] = last["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "Warm.")


async def test_chat(gateway: Gateway, modules: Path) -> None:
    gateway.says(CALLS)
    gateway.says(DONE)
    seen = await session(gateway, modules, "chat")
    check_chat(seen["first"], seen["last"])
    one, _ = await two_turns(gateway)
    assert seen["first"]["usage"]["total_tokens"] == one["prompt_len"] + one["completion_len"]


async def test_the_runner_streams_and_calls_tools(gateway: Gateway, modules: Path) -> None:
    gateway.says(CALLS)
    gateway.says(DONE)
    seen = await session(gateway, modules, "runner")
    check_chat(seen["first"], seen["last"])
    assert (seen["text"], seen["cities"]) == ("Warm.", ["Zürich", "Oslo"])
    turns = await two_turns(gateway)
    for field, column in (("prompt_tokens", "prompt_len"), ("completion_tokens", "completion_len")):
        assert seen["usage"][field] == sum(turn[column] for turn in turns)


async def test_responses(gateway: Gateway, modules: Path) -> None:
    gateway.says(CALLS)
    gateway.says(DONE)
    seen = await session(gateway, modules, "responses")
    kinds = [item["type"] for item in seen["first"]["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    assert {"response.output_item.done", "response.completed"} <= set(seen["kinds"])
    assert (seen["text"], seen["last"]["status"]) == ("Warm.", "completed")
    await two_turns(gateway)


async def test_a_reply_is_parsed(gateway: Gateway, modules: Path) -> None:
    gateway.says('{"city": "Zürich", "degrees": 21}')
    assert await session(gateway, modules, "parsed") == {"city": "Zürich", "degrees": 21}
    assert "structural_tag" in gateway.engine.requests[0]["sampling_params"]


async def test_errors_are_those_that_the_client_knows(gateway: Gateway, modules: Path) -> None:
    gateway.engine.faults.refuse = (503, "The request queue is full.")
    seen = await session(gateway, modules, "errors")
    assert {name: (error["class"], error["status"]) for name, error in seen.items()} == {
        "key": ("AuthenticationError", 401),
        "model": ("NotFoundError", 404),
        "full": ("InternalServerError", 503),
    }
    assert all(error["request_id"] for error in seen.values())
