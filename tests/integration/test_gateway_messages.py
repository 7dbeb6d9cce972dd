"""The Messages API over real sockets, a real Postgres and the fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from gateway.config import Settings
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway as Served
from tests.running import gateway_values, make_keys, running_gateway
from tests.unit.anthropic_client import events, message_of
from tests.unit.chat_models import REASONING, write_model


@dataclass(kw_only=True)
class Gateway(Served):
    http: aiohttp.ClientSession

    async def post(
        self, body: dict[str, Any], path: str = "messages", **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(
            f"{self.url}/v1/{path}?beta=true", json=body, headers=headers
        ) as answer:
            return (
                answer.status,
                await answer.read(),
                {k.lower(): v for k, v in answer.headers.items()},
            )

    async def message(self, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        status, raw, _ = await self.post(body, **headers)
        assert status == 200, raw
        if body.get("stream"):
            return message_of(events(raw))
        value: dict[str, Any] = json.loads(raw)
        return value


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and a template with reasoning and tools."""
    return write_model(tmp_path_factory.mktemp("reasons") / "model", REASONING)


@pytest.fixture
async def gateway(database_url: str, model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with FakeSglang(model_path=model) as engine:
        keys = await make_keys(database_url, "tiny")
        settings = Settings(**gateway_values(database_url, model, engine.url, tmp_path))
        async with (
            running_gateway(settings, keys) as running,
            aiohttp.ClientSession(
                headers={"x-api-key": keys.agent, "anthropic-version": "2023-06-01"}
            ) as http,
        ):
            yield Gateway(
                url=running.url, keys=keys, services=running.services, engine=engine, http=http
            )


TOOLS = [
    {
        "name": "get_weather",
        "description": "Tells the weather.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
ASK: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 500,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Weather?"}]}],
    "tools": TOOLS,
}
CALLS = (
    "<think>\nTwo cities.\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_whole_exchange_with_tools(gateway: Gateway, stream: bool) -> None:
    ids = gateway.says(CALLS)
    gateway.says("<think>\nDone.\n</think>\n\n21 and 9.")
    ask = {**ASK, "stream": stream, "metadata": {"user_id": "u1"}}
    message = await gateway.message(ask, x_claude_code_session_id="s1")
    thinking, text, first, second = message["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Two cities.")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "Let me see."}
    assert [first["input"], second["input"]] == [{"city": "Zürich"}, {"city": "Oslo"}]
    assert first["id"].startswith("toolu_")
    assert first["id"] != second["id"]
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    seen = gateway.engine.requests[0]["input_ids"]
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(seen)
    assert usage["output_tokens"] == len(ids)

    results = [
        {"type": "tool_result", "tool_use_id": second["id"], "content": "9"},
        {"type": "tool_result", "tool_use_id": first["id"], "content": "bad", "is_error": True},
    ]
    told = [
        *ASK["messages"],
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": results},
    ]
    last = await gateway.message({**ask, "messages": told}, x_claude_code_session_id="s1")
    assert [block["type"] for block in last["content"]] == ["thinking", "text"]
    assert last["content"][1]["text"] == "21 and 9."
    assert last["stop_reason"] == "end_turn"

    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert message["id"] == f"msg_{one['id'].hex}"
    assert two["parent_id"] == one["id"]
    assert two["branch_reason"] is None
    assert two["shared_len"] == len(seen) + len(ids)
    assert gateway.engine.requests[1]["input_ids"][: two["shared_len"]] == seen + ids
    assert [row["dialect"] for row in (one, two)] == ["anthropic_messages"] * 2
    assert [row["stream_mismatch"] for row in (one, two)] == [False, False]
    assert one["reply"]["tool_calls"][0]["id"] == first["id"]
    assert two["messages"] == [
        {"role": "tool", "tool_call_id": first["id"], "content": "bad", "is_error": True},
        {"role": "tool", "tool_call_id": second["id"], "content": "9"},
    ]
    [session] = await gateway.rows("SELECT external_id, resolved_by FROM sessions")
    assert session["external_id"] == "s1"


async def test_a_stop_sequence_is_told(gateway: Gateway) -> None:
    for stream in (True, False):
        gateway.says("one END two")
        body = {**ASK, "stream": stream, "stop_sequences": ["END"]}
        message = await gateway.message(body)
        assert message["content"] == [{"type": "text", "text": "one "}]
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


async def test_a_reply_that_is_cut_says_so(gateway: Gateway) -> None:
    gateway.says("one two three four five six seven")
    message = await gateway.message({**ASK, "max_tokens": 3})
    assert message["stop_reason"] == "max_tokens"
    assert message["usage"]["output_tokens"] == 3


async def test_more_tokens_than_the_context_has_are_cut(gateway: Gateway) -> None:
    gateway.says("fine")
    await gateway.message({**ASK, "max_tokens": 64_000})
    sent = gateway.engine.requests[0]
    limit = sent["sampling_params"]["max_new_tokens"]
    assert len(sent["input_ids"]) + limit == gateway.services.tokenizer.facts.context_length


async def test_tokens_are_counted_as_they_would_be_rendered(gateway: Gateway) -> None:
    body = {key: value for key, value in ASK.items() if key != "max_tokens"}
    status, raw, _ = await gateway.post(body, "messages/count_tokens")
    assert status == 200
    assert await gateway.rows("SELECT 1 FROM turns") == []
    assert gateway.engine.requests == []
    gateway.says("fine")
    await gateway.message(ASK)
    assert json.loads(raw) == {"input_tokens": len(gateway.engine.requests[0]["input_ids"])}


async def test_an_agent_may_ask_whether_anybody_is_there(gateway: Gateway) -> None:
    async with gateway.http.head(f"{gateway.url}/") as answer:
        assert answer.status == 200


LONG = [{"role": "user", "content": "a b " * 9000}]
IMAGE = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"messages": []}, 400, "invalid_request_error"),
    ({"messages": IMAGE}, 400, "invalid_request_error"),
    ({"thread": {"type": "create"}}, 400, "invalid_request_error"),
    ({"tool_choice": {"type": "maybe"}}, 400, "invalid_request_error"),
    ({"model": "gpt"}, 404, "not_found_error"),
    ({"messages": [{"role": "user", "content": "x" * 300_000}]}, 413, "request_too_large"),
]
WRONG_TO_SAMPLE: list[tuple[dict[str, Any], int, str]] = [
    ({"max_tokens": None}, 400, "invalid_request_error"),
    ({"temperature": 9}, 400, "invalid_request_error"),
    ({"messages": LONG}, 400, "invalid_request_error"),
]


@pytest.mark.parametrize(
    ("path", "fields", "status", "kind"),
    [
        *(("messages", *case) for case in [*WRONG, *WRONG_TO_SAMPLE]),
        *(("messages/count_tokens", *case) for case in WRONG),
    ],
)
async def test_bad_input_gets_one_clear_error(
    gateway: Gateway, path: str, fields: dict[str, Any], status: int, kind: str
) -> None:
    found, raw, headers = await gateway.post({**ASK, **fields}, path)
    body = json.loads(raw)
    assert (found, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["error"]["message"]
    assert headers["request-id"] == body["request_id"]
    assert await gateway.rows("SELECT 1 FROM turns") == []


async def test_a_prompt_that_is_too_long_is_told_in_the_words_that_agents_know(
    gateway: Gateway,
) -> None:
    _, raw, _ = await gateway.post({**ASK, "messages": LONG})
    assert json.loads(raw)["error"]["message"].startswith("prompt is too long: ")


async def test_a_key_is_needed_and_an_admin_key_does_not_infer(gateway: Gateway) -> None:
    for path in ("messages", "messages/count_tokens"):
        status, raw, _ = await gateway.post(ASK, path, x_api_key="no")
        assert (status, json.loads(raw)["error"]["type"]) == (401, "authentication_error")
        status, raw, _ = await gateway.post(ASK, path, x_api_key=gateway.keys.admin)
        assert (status, json.loads(raw)["error"]["type"]) == (403, "permission_error")


async def test_an_engine_that_is_down_or_full_is_told(gateway: Gateway) -> None:
    gateway.engine.faults.refuse = (503, "The request queue is full.")
    status, raw, headers = await gateway.post(ASK)
    assert (status, json.loads(raw)["error"]["type"]) == (529, "overloaded_error")
    assert headers["retry-after"]
    await gateway.engine.stop()
    status, raw, headers = await gateway.post(ASK)
    assert (status, json.loads(raw)["error"]["type"]) == (503, "api_error")
    assert headers["retry-after"]


async def test_an_engine_that_dies_in_mid_stream_ends_in_an_error_event(gateway: Gateway) -> None:
    gateway.engine.faults.die_after = 2
    gateway.says("the quick brown fox")
    status, raw, _ = await gateway.post({**ASK, "stream": True})
    assert status == 200
    last = events(raw)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    async with asyncio.timeout(120):
        while not (rows := await gateway.rows("SELECT * FROM turns")):
            await asyncio.sleep(0.02)
    assert rows[0]["finish_reason"] == "abort"
    assert UUID(events(raw)[0]["message"]["id"].removeprefix("msg_")) == rows[0]["id"]
