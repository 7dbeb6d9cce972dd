"""The official Anthropic client, in an environment of its own, against a real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.clients import client_python, run_client
from tests.fixtures_gateway import Gateway
from tests.reasoning import CALLS, DONE, called, reasoning_gateway

gateway = reasoning_gateway


@pytest.fixture(scope="session")
async def python() -> Path:
    return await asyncio.to_thread(client_python, "anthropic")


async def session(gateway: Gateway, python: Path, doing: str) -> Any:
    return await run_client(
        python,
        "anthropic_session.py",
        doing,
        ANTHROPIC_BASE_URL=gateway.url,
        ANTHROPIC_API_KEY=gateway.keys.agent,
    )


def check_exchange(first: dict[str, Any], last: dict[str, Any]) -> None:
    thinking, text, one, two = first["content"]
    assert thinking["thinking"] == "Two cities."
    assert text["text"] == "Let me see."
    assert [(call["name"], call["input"]) for call in (one, two)] == [
        ("get_weather", {"city": "Zürich"}),
        ("get_weather", {"city": "Oslo"}),
    ]
    assert first["stop_reason"] == "tool_use"
    assert [block["type"] for block in last["content"]] == ["thinking", "text"]
    assert last["content"][1]["text"] == "Warm."
    assert last["stop_reason"] == "end_turn"


async def check_turns(gateway: Gateway, first: dict[str, Any]) -> None:
    """The second turn extends the ids of the first, and its results are in order."""
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert (two["parent_id"], two["branch_reason"]) == (one["id"], None)
    assert [row["stream_mismatch"] for row in (one, two)] == [False, False]
    assert [message["content"] for message in two["messages"]] == ["Zürich: 21", "Oslo: 21"]
    usage = first["usage"]
    seen = usage["input_tokens"] + (usage["cache_read_input_tokens"] or 0)
    assert seen == one["prompt_len"] == len(gateway.engine.requests[0]["input_ids"])
    assert usage["output_tokens"] == one["completion_len"]


async def test_a_whole_exchange(gateway: Gateway, python: Path) -> None:
    gateway.says(CALLS)
    gateway.says(DONE)
    seen = await session(gateway, python, "plain")
    check_exchange(seen["first"], seen["last"])
    await check_turns(gateway, seen["first"])
    assert seen["counted"] == len(gateway.engine.requests[0]["input_ids"])
    assert seen["request_id"].startswith("req_")
    assert seen["models"] == ["tiny"]
    told = (seen["card"]["type"], seen["card"]["id"], seen["card"]["display_name"])
    assert told == ("model", "tiny", "tiny")
    assert seen["card"]["created_at"].startswith("1970-01-01T00:00:00")


async def test_a_whole_exchange_streamed(gateway: Gateway, python: Path) -> None:
    gateway.says(CALLS)
    gateway.says(DONE)
    seen = await session(gateway, python, "streamed")
    check_exchange(seen["first"], seen["last"])
    await check_turns(gateway, seen["first"])
    assert seen["text"] == "Warm."
    assert {"thinking", "signature", "text", "input_json", "message_stop"} <= set(seen["kinds"])


async def test_the_tool_runner_sends_the_whole_conversation(gateway: Gateway, python: Path) -> None:
    gateway.says(CALLS)
    gateway.says(DONE)
    first, last = (await session(gateway, python, "runner"))["messages"]
    check_exchange(first, last)
    await check_turns(gateway, first)


async def test_the_clients_own_memory_tool(gateway: Gateway, python: Path) -> None:
    """Named by a type alone; what the model is told of it is what the client reads."""
    created = {"command": "create", "path": "/memories/a.txt", "file_text": "Likes tea."}
    renamed = {"command": "rename", "old_path": "/memories/a.txt", "new_path": "/memories/b.txt"}
    gateway.says("".join(called("memory", each) for each in (created, renamed)))
    gateway.says(DONE)
    seen = await session(gateway, python, "memory")
    assert seen["asked"] == [created, renamed]
    turn, after = await gateway.rows("SELECT * FROM turns ORDER BY id")
    (tool,) = turn["tools"]
    assert sorted(tool["function"]["parameters"]["properties"]) == seen["fields"]
    assert (after["parent_id"], after["branch_reason"]) == (turn["id"], None)


async def test_errors_are_those_that_the_client_knows(gateway: Gateway, python: Path) -> None:
    gateway.engine.faults.refuse = (503, "The request queue is full.")
    seen = await session(gateway, python, "errors")
    assert {name: (error["class"], error["status"]) for name, error in seen.items()} == {
        "key": ("AuthenticationError", 401),
        "model": ("NotFoundError", 404),
        "length": ("BadRequestError", 400),
        "range": ("BadRequestError", 400),
        "overloaded": ("OverloadedError", 529),
    }
    assert "prompt is too long" in seen["length"]["message"]
    assert all(error["request_id"].startswith("req_") for error in seen.values())
