"""The official OpenAI client for Python, in an environment of its own, against a real socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import client_python, run_client
from tests.fixtures_gateway import Gateway
from tests.reasoning import CALLS, DONE, reasoning_gateway
from tests.recorder import recording

gateway = reasoning_gateway


@pytest.fixture(scope="session")
async def python() -> Path:
    return await asyncio.to_thread(client_python, "openai")


async def session(gateway: Gateway, python: Path, doing: str) -> Any:
    return await run_client(
        python,
        "openai_session.py",
        doing,
        OPENAI_BASE_URL=f"{gateway.url}/v1",
        OPENAI_API_KEY=gateway.keys.agent,
    )


async def two_turns(gateway: Gateway) -> list[dict[str, Any]]:
    """The two turns of an exchange with tools: the second extends the ids of the first."""
    rows = await gateway.rows("SELECT * FROM turns ORDER BY id")
    one, two = rows[:2]
    assert (one["parent_id"], one["kind"]) == (None, "main")
    assert (two["parent_id"], two["branch_reason"], two["kind"]) == (one["id"], None, "main")
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
    assert [row["stream_mismatch"] for row in rows] == [False] * len(rows)
    assert [message["content"] for message in two["messages"]] == ["Zürich: 21", "Oslo: 21"]
    [state] = await gateway.rows("SELECT * FROM next_states WHERE turn_id = $1", one["id"])
    assert (state["role"], len(state["messages"])) == ("tool", 2)
    return rows


def check_chat(first: dict[str, Any], one: dict[str, Any]) -> None:
    [choice] = first["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["reasoning_content"], message["content"]) == ("Two cities.", "Let me see.")
    calls = message["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [
        {"city": "Zürich"},
        {"city": "Oslo"},
    ]
    assert len({call["id"] for call in calls}) == 2
    assert_usage(first["usage"], one, "prompt_tokens", "completion_tokens")


def assert_usage(usage: dict[str, Any], turn: dict[str, Any], given: str, sampled: str) -> None:
    counts = turn["prompt_len"], turn["completion_len"]
    assert (usage[given], usage[sampled]) == counts
    assert usage["total_tokens"] == sum(counts)


async def test_chat(gateway: Gateway, python: Path) -> None:
    gateway.says(CALLS)
    gateway.says(DONE)
    seen = await session(gateway, python, "chat")
    one, two = await two_turns(gateway)
    check_chat(seen["first"], one)
    [choice] = seen["last"]["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "Warm.")
    assert_usage(seen["last"]["usage"], two, "prompt_tokens", "completion_tokens")
    assert seen["models"] == ["tiny"]
    assert len(seen["id"]) == 32


async def test_chat_streamed(gateway: Gateway, python: Path) -> None:
    gateway.says(CALLS)
    gateway.says(DONE)
    seen = await session(gateway, python, "chat_streamed")
    one, two = await two_turns(gateway)
    check_chat(seen["first"], one)
    assert {"content.done", "tool_calls.function.arguments.done"} <= set(seen["kinds"])
    assert (seen["text"], seen["finishes"]) == ("Warm.", ["stop"])
    [usage] = seen["usages"]
    assert_usage(usage, two, "prompt_tokens", "completion_tokens")


async def test_functions(gateway: Gateway, python: Path) -> None:
    for text in (CALLS, DONE, CALLS):
        gateway.says(text)
    seen = await session(gateway, python, "functions")
    [first] = seen["first"]["choices"]
    assert first["finish_reason"] == "function_call"
    message = first["message"]
    assert (message["reasoning_content"], message["content"]) == ("Two cities.", "Let me see.")
    assert message["function_call"] == {"name": "get_weather", "arguments": '{"city": "Zürich"}'}
    assert "tool_calls" not in message
    [last] = seen["last"]["choices"]
    assert (last["finish_reason"], last["message"]["content"]) == ("stop", "Warm.")
    name, *arguments = seen["parts"]
    assert name == {"name": "get_weather", "arguments": ""}
    assert "".join(part["arguments"] for part in arguments) == '{"city": "Zürich"}'
    assert not any("name" in part for part in arguments)
    one, two, _ = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert (two["parent_id"], two["branch_reason"], two["kind"]) == (one["id"], None, "main")
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
    assert_usage(seen["first"]["usage"], one, "prompt_tokens", "completion_tokens")
    assert_usage(seen["last"]["usage"], two, "prompt_tokens", "completion_tokens")
    [state] = await gateway.rows("SELECT * FROM next_states WHERE turn_id = $1", one["id"])
    assert (state["role"], [one["content"] for one in state["messages"]]) == (
        "tool", ["Zürich: 21"],
    )  # fmt: skip


async def test_several_prompts(gateway: Gateway, python: Path) -> None:
    ids = [gateway.services.tokenizer.encode(text) for text in ("Hello", "Weather?")]
    reply = gateway.services.tokenizer.encode("Warm.")
    stop = gateway.services.tokenizer.facts.stop_token_ids[0]
    gateway.engine.script = lambda body: [*body["input_ids"], *reply, stop]
    seen = await session(gateway, python, "prompts")
    expected = [f"{text}{text}Warm." for text in ("Hello", "Hello", "Weather?", "Weather?")]
    assert seen["texts"] == [choice["text"] for choice in seen["whole"]["choices"]] == expected
    assert [choice["index"] for choice in seen["whole"]["choices"]] == [0, 1, 2, 3]
    assert seen["finishes"] == [0, 1, 2, 3]
    given = sum(map(len, ids))
    sampled = 2 * (given + 2 * (len(reply) + 1))
    usage = seen["whole"]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (given, sampled)
    turns = await gateway.rows("SELECT trainable FROM turns")
    assert [turn["trainable"] for turn in turns] == [True] * 8


async def test_replies_are_parsed_into_models(gateway: Gateway, python: Path) -> None:
    weather = {"city": "Zürich", "degrees": 21}
    written = json.dumps(weather, ensure_ascii=False)
    for text in (written, written):
        gateway.says(text)
    gateway.says(f'<tool_call>\n{{"name": "get_weather", "arguments": {written}}}\n</tool_call>')
    assert await session(gateway, python, "parsed") == [weather] * 3
    asked = [body["sampling_params"] for body in gateway.engine.requests]
    assert ["structural_tag" in params for params in asked[:2]] == [True, True]
    assert all("degrees" in params["structural_tag"] for params in asked[:2])


async def test_responses(gateway: Gateway, python: Path) -> None:
    for text in (CALLS, DONE, DONE):
        gateway.says(text)
    seen = await session(gateway, python, "responses")
    one, two, three = await two_turns(gateway)
    first, last = seen["first"], seen["last"]
    kinds = [item["type"] for item in first["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    assert first["status"] == last["status"] == "completed"
    assert_usage(first["usage"], one, "input_tokens", "output_tokens")
    assert_usage(last["usage"], two, "input_tokens", "output_tokens")
    assert seen["text"] == "Warm."
    assert (three["parent_id"], three["messages"]) == (
        two["id"],
        [{"role": "user", "content": "Thanks. Again?"}],
    )
    assert seen["more"]["previous_response_id"] == last["id"]
    assert seen["kept"]["output"] == last["output"]
    assert seen["items"] == ["message", *kinds, "function_call_output", "function_call_output"]


async def test_responses_streamed(gateway: Gateway, python: Path) -> None:
    gateway.says(CALLS)
    gateway.says(DONE)
    seen = await session(gateway, python, "responses_streamed")
    one, two = await two_turns(gateway)
    assert_usage(seen["first"]["usage"], one, "input_tokens", "output_tokens")
    assert_usage(seen["last"]["usage"], two, "input_tokens", "output_tokens")
    assert seen["text"] == "Warm."
    assert seen["numbers"] == list(range(len(seen["numbers"])))
    assert {"response.function_call_arguments.done", "response.completed"} <= set(seen["kinds"])


async def test_errors_are_those_that_the_client_knows(gateway: Gateway, python: Path) -> None:
    gateway.engine.faults.refuse = (503, "The request queue is full.")
    seen = await session(gateway, python, "errors")
    for api in ("chat", "responses", "completions"):
        found = {
            name: (seen[f"{api} {name}"]["class"], seen[f"{api} {name}"]["status"])
            for name in ("key", "model", "length", "range", "full")
        }
        assert found == {
            "key": ("AuthenticationError", 401),
            "model": ("NotFoundError", 404),
            "length": ("BadRequestError", 400),
            "range": ("BadRequestError", 400),
            "full": ("InternalServerError", 503),
        }
        assert seen[f"{api} model"]["code"] == "model_not_found"
        assert seen[f"{api} length"]["code"] == "context_length_exceeded"
        assert "2048" in seen[f"{api} length"]["message"]
    assert all(error["request_id"] for error in seen.values())


@pytest.mark.parametrize(
    ("refusal", "status", "counts"),
    [
        # Full: the client comes back by itself.
        ((503, "The request queue is full."), 503, ["0", "1"]),
        # Refused for what the request is: to send it again would be of no use.
        ((400, "No such thing."), 502, ["0"]),
    ],
)
async def test_the_client_is_told_whether_to_try_again(
    gateway: Gateway, python: Path, refusal: tuple[int, str], status: int, counts: list[str]
) -> None:
    gateway.engine.faults.refuse = refusal
    async with recording(gateway.url) as recorder:
        seen = await run_client(
            python,
            "openai_session.py",
            "patient",
            OPENAI_BASE_URL=f"{recorder.url}/v1",
            OPENAI_API_KEY=gateway.keys.agent,
        )
    assert seen == status
    sent = [exchange.headers["x-stainless-retry-count"] for exchange in recorder.exchanges]
    assert sent == counts
