"""Traps that known clients are caught in, each at the wire: what they must always be sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import aiohttp
import pytest

from tests.fixtures_gateway import Gateway
from tests.reasoning import CALLS, DONE, reasoning_gateway

gateway = reasoning_gateway

MESSAGES = [{"role": "user", "content": "Weather?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "get_weather", "parameters": PARAMETERS}
#: Path, what a request needs beside its conversation, the conversation, and the tool.
DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "chat/completions",
        {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]},
    ),
    "responses": ("responses", {"input": MESSAGES, "tools": [{"type": "function", **FUNCTION}]}),
    "messages": (
        "messages",
        {
            "messages": MESSAGES,
            "max_tokens": 300,
            "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
        },
    ),
}


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield session


async def said(
    http: aiohttp.ClientSession, gateway: Gateway, dialect: str, **more: Any
) -> list[dict[str, Any]]:
    """The events of a stream in their order, or the one answer of a request without one."""
    path, body = DIALECTS[dialect]
    asked = {"model": "tiny", **body, **more}
    async with http.post(f"{gateway.url}/v1/{path}", json=asked) as answer:
        text = await answer.text()
        assert answer.status == 200, text
    if not asked.get("stream"):
        return [json.loads(text)]
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data.count("[DONE]") == (dialect == "chat")
    return [json.loads(line) for line in data if line != "[DONE]"]


def reasons(dialect: str, events: list[dict[str, Any]]) -> list[str]:
    """Every word about why a reply ended, in the order of the events that say it."""
    if dialect == "chat":
        of_choices = [choice for event in events for choice in event["choices"]]
        return [choice["finish_reason"] for choice in of_choices if choice["finish_reason"]]
    if dialect == "messages":
        told = [event.get("delta", event).get("stop_reason") for event in events]
        return [reason for reason in told if reason]
    ended = [event for event in events if event.get("type", "").startswith("response.")]
    replies = [event["response"] for event in ended if "response" in event] or events
    return [reply["status"] for reply in replies if reply["status"] != "in_progress"]


def usage(dialect: str, events: list[dict[str, Any]]) -> tuple[int, int]:
    """Tokens of prompt and reply as the client is told."""
    found: dict[str, int] = {}
    for event in events:
        for told in (event, event.get("response") or {}, event.get("message") or {}):
            found |= told.get("usage") or {}
    if dialect == "chat":
        return found["prompt_tokens"], found["completion_tokens"]
    cached = found.get("cache_read_input_tokens") or 0
    return found["input_tokens"] + cached, found["output_tokens"]


ENDS = {
    # What was said, how many tokens were allowed, and the word for its end in each dialect.
    "calls": (CALLS, 300, {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}),
    "text": (DONE, 300, {"chat": "stop", "responses": "completed", "messages": "end_turn"}),
    "cut": (DONE, 12, {"chat": "length", "responses": "incomplete", "messages": "max_tokens"}),
}
LIMITS = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_reply_says_once_why_it_ended_and_what_it_cost(
    http: aiohttp.ClientSession, gateway: Gateway, dialect: str
) -> None:
    """Without it opencode asks for ever, qwen-code and pi fail, codex compacts for ever."""
    for (text, limit, words), stream in product(ENDS.values(), (False, True)):
        gateway.says(text)
        more: dict[str, Any] = {LIMITS[dialect]: limit, "stream": stream}
        if dialect == "chat" and stream:
            more["stream_options"] = {"include_usage": True}
        events = await said(http, gateway, dialect, **more)
        assert reasons(dialect, events) == [words[dialect]]
        [*_, turn] = await gateway.rows("SELECT prompt_len, completion_len FROM turns ORDER BY id")
        assert usage(dialect, events) == (turn["prompt_len"], turn["completion_len"])
        assert turn["prompt_len"] == len(gateway.engine.requests[-1]["input_ids"])


async def test_a_chat_stream_gives_usage_only_if_asked(
    http: aiohttp.ClientSession, gateway: Gateway
) -> None:
    """Clients take a last event without choices for a fault unless they asked for it."""
    gateway.says(DONE)
    events = await said(http, gateway, "chat", stream=True)
    assert all(event["choices"] and not event.get("usage") for event in events)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_no_id_is_ever_given_twice(
    http: aiohttp.ClientSession, gateway: Gateway, dialect: str
) -> None:
    """Equal requests with equal replies: agents look calls up by their ids in one history."""
    given: list[str] = []
    for stream in (False, True, False, True):
        gateway.says(CALLS)
        found: set[str] = set()
        for event in await said(http, gateway, dialect, stream=stream):
            found |= ids_in(event)
        # The reply itself, its two calls, and in the Responses API every item.
        assert len(found) == (7 if dialect == "responses" else 3)
        given += found
    assert len(given) == len(set(given))


def ids_in(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(ids_in, value))
    if not isinstance(value, dict):
        return set()
    own = {value[name] for name in ("id", "call_id", "item_id") if value.get(name)}
    return own.union(*map(ids_in, value.values()))


THREADS: tuple[dict[str, Any], ...] = (
    {"thread": {"type": "create"}},
    {"thread": {"type": "continue"}, "previous_message_id": "msg_1", "tools": None},
)


async def test_a_thread_is_refused_in_the_words_that_make_the_client_send_all(
    http: aiohttp.ClientSession, gateway: Gateway
) -> None:
    """To ignore it would lose the history: a tool runner goes on with what is new alone."""
    for path, thread in product(("messages", "messages/count_tokens"), THREADS):
        body = {"model": "tiny", **DIALECTS["messages"][1], **thread}
        body = {name: value for name, value in body.items() if value is not None}
        async with http.post(f"{gateway.url}/v1/{path}", json=body) as answer:
            error = (await answer.json())["error"]
            assert answer.status == 400
        assert error["details"]["error_code"] == "thread_unsupported_request"
    assert await gateway.rows("SELECT 1 FROM turns") == []


async def test_a_ping_is_answered(http: aiohttp.ClientSession, gateway: Gateway) -> None:
    """claude-code asks whether anybody is there before it says anything."""
    for path in ("/", "/v1/models"):
        async with http.head(f"{gateway.url}{path}") as answer:
            assert (answer.status, await answer.read()) == (200, b"")


REFUSALS = (
    # What the engine answers; status by dialect; whether and when to come back.
    ((503, "The request queue is full."), {"chat": 503, "messages": 529}, None, "1"),
    ((400, "No such thing."), {"chat": 502, "messages": 502}, "false", None),
)


async def test_a_client_is_told_whether_to_come_back(
    http: aiohttp.ClientSession, gateway: Gateway
) -> None:
    """Official clients send anything of 500 and more again, unless they are told not to."""
    for (refusal, statuses, retry, after), dialect in product(REFUSALS, DIALECTS):
        gateway.engine.faults.refuse = refusal
        path, body = DIALECTS[dialect]
        async with http.post(f"{gateway.url}/v1/{path}", json={"model": "tiny", **body}) as answer:
            assert answer.status == statuses.get(dialect, statuses["chat"])
            assert answer.headers.get("x-should-retry") == retry
            assert answer.headers.get("retry-after") == after


async def test_calls_come_with_text_and_both_are_kept(
    http: aiohttp.ClientSession, gateway: Gateway
) -> None:
    """openclaw drops calls that come with text unless the reason says that there are some."""
    gateway.says(CALLS)
    events = await said(http, gateway, "chat", stream=True)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Let me see."
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    named = [(call["index"], call["function"]["name"]) for call in calls if "id" in call]
    assert named == [(0, "get_weather"), (1, "get_weather")]
    assert reasons("chat", events) == ["tool_calls"]


async def test_a_turn_state_is_given_back_with_refusals_too(
    http: aiohttp.ClientSession, gateway: Gateway
) -> None:
    """codex keeps the state of the first answer in a turn of its user, whatever came of it."""
    headers = {"x-codex-window-id": "w:0", "x-codex-turn-state": "kept"}
    body = {"model": "another", "input": "Hi"}
    async with http.post(f"{gateway.url}/v1/responses", json=body, headers=headers) as answer:
        assert (answer.status, answer.headers["x-codex-turn-state"]) == (404, "kept")


async def test_a_retry_count_makes_a_retry_and_no_second_turn(
    http: aiohttp.ClientSession, gateway: Gateway
) -> None:
    """The same body after a failure is one turn, though it was sent three times."""
    gateway.says(DONE)
    body = {"model": "tiny", **DIALECTS["chat"][1]}
    statuses = []
    for count in range(3):
        gateway.engine.faults.refuse = None if count == 2 else (503, "The request queue is full.")
        headers = {"x-stainless-retry-count": str(count)}
        async with http.post(
            f"{gateway.url}/v1/chat/completions", json=body, headers=headers
        ) as answer:
            statuses.append(answer.status)
    assert statuses == [503, 503, 200]
    assert len(await gateway.rows("SELECT 1 FROM turns")) == 1


def turned(value: Any) -> Any:
    """The same JSON with the keys of every object in the other order."""
    if isinstance(value, list):
        return [turned(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: turned(value[name]) for name in reversed(value)}


async def test_the_order_of_keys_makes_no_other_request(
    http: aiohttp.ClientSession, gateway: Gateway
) -> None:
    """codex writes the same request with its keys in another order each time."""
    for dialect, (path, body) in DIALECTS.items():
        for asked in ({"model": "tiny", **body}, turned({"model": "tiny", **body})):
            gateway.says(DONE)
            async with http.post(f"{gateway.url}/v1/{path}", json=asked) as answer:
                assert answer.status == 200
        one, two = (await gateway.rows("SELECT * FROM turns ORDER BY id"))[-2:]
        assert one["request_hash"] == two["request_hash"], dialect
        assert one["retry_of"] is two["retry_of"] is None


async def test_the_id_that_codex_gives_all_requests_of_a_thread_makes_no_retry(
    http: aiohttp.ClientSession, gateway: Gateway
) -> None:
    headers = {"session-id": "s", "thread-id": "s", "x-client-request-id": "s"}
    for text in ("One.", "One."):
        gateway.says(DONE)
        body = {"model": "tiny", "input": text}
        async with http.post(f"{gateway.url}/v1/responses", json=body, headers=headers) as answer:
            assert answer.status == 200
    turns = await gateway.rows("SELECT * FROM turns")
    assert [turn["retry_of"] for turn in turns] == [None, None]
