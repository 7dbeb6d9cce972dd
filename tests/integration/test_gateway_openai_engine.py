"""The gateway over an engine without token ids: captured as text, judged, never trained on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from gateway.api.services import Services
from gateway.config import EngineSettings, Settings
from gateway.errors import ConfigError
from tests.dialects import first_event
from tests.fakes import FakeSglang
from tests.fakes_openai import FakeOpenAI, says
from tests.running import Gateway, gateway_values, make_keys, running_gateway
from tests.unit.anthropic_client import events, message_of

ASK = [{"role": "user", "content": "The quick brown fox?"}]
TOOLS = [{"type": "function", "function": {"name": "look"}}]


@dataclass(kw_only=True)
class Texts(Gateway):
    upstream: FakeOpenAI


@pytest.fixture
async def gateway(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Texts]:
    async with FakeOpenAI() as upstream:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, tiny_model, "", tmp_path)
        values["engines"] = ({"kind": "openai", "url": upstream.url, "model": "theirs"},)
        async with running_gateway(Settings(**values), keys) as running:
            yield Texts(url=running.url, keys=keys, services=running.services, upstream=upstream)


async def test_a_reply_passes_through_and_is_kept_as_text(gateway: Texts) -> None:
    gateway.upstream.replies.append([{"reasoning_content": "hm"}, *says("jumps ", "over")])
    async with gateway.client() as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert [delta.content for delta in deltas if delta.content] == ["jumps ", "over"]
    assert [delta.reasoning_content for delta in deltas if hasattr(delta, "reasoning_content")] == [
        "hm"
    ]
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (11, 5)
    assert gateway.upstream.requests[0]["model"] == "theirs"
    [turn] = await gateway.rows("SELECT * FROM turns")
    assert turn["reply"]["content"] == "jumps over"
    assert (turn["engine"], turn["finish_reason"]) == ("openai-0", "stop")
    assert (turn["trainable"], turn["untrainable_reason"]) == (False, "no_token_ids")
    assert (turn["prompt_len"], turn["completion_len"], turn["sampled_ids"]) == (0, 0, b"")
    assert turn["version_min"] is None


async def test_an_upstream_is_sent_what_a_chat_client_would_send(gateway: Texts) -> None:
    """Other dialects' requests have marks of ours on messages, which strict servers refuse."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "No.", "is_error": True}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("responses", {"instructions": "Be brief.", "input": "Hi"}),
        (
            "messages",
            {
                "max_tokens": 9,
                "messages": [
                    {"role": "assistant", "content": [call]},
                    {"role": "user", "content": [result]},
                ],
            },
        ),
    ]
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for path, body in asked:
            gateway.upstream.replies.append(says("ok"))
            whole = {"model": "tiny", **body}
            async with http.post(f"{gateway.url}/v1/{path}", json=whole) as answer:
                assert answer.status == 200
    function = {"name": "f", "arguments": "{}"}
    assert [request["messages"] for request in gateway.upstream.requests] == [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "toolu_1", "content": "No."},
        ],
    ]
    one, _ = await gateway.rows("SELECT messages FROM turns ORDER BY id")
    assert one["messages"][0]["instructions"] is True


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        ([{"content": "I would"}, {"finish": "content_filter"}], "content_filter"),
        ([{"refusal": "I cannot help."}, {"finish": "stop"}], "refusal"),
    ],
)
async def test_what_was_filtered_or_refused_says_so(
    gateway: Texts, said: list[dict[str, str]], detail: str
) -> None:
    gateway.upstream.replies.append(said)
    async with gateway.client() as client:
        await client.chat.completions.create(model="tiny", messages=ASK)
    [turn] = await gateway.rows("SELECT * FROM turns")
    assert (turn["finish_reason"], turn["finish_detail"]) == ("length", detail)
    assert turn["untrainable_reason"] == "no_token_ids"


def part(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    """A piece of a call, as a server streams it."""
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    own = {"id": f"theirs_{index}", "type": "function"} if name else {}
    return {"tool_calls": [{"index": index, **own, "function": function}]}


async def test_calls_that_an_upstream_mixes_are_told_one_by_one(gateway: Texts) -> None:
    """In Responses and Messages a part that is closed cannot be opened again."""
    mixed = [
        part(0, "", "look"), part(1, "", "feed"), part(0, '{"at":'), part(1, '{"it"'),
        {"content": "So."}, part(0, ' "fox"}'), part(1, ": 1}"), {"finish": "tool_calls"},
    ]  # fmt: skip
    expected = [("look", {"at": "fox"}), ("feed", {"it": 1})]
    names = ("look", "feed")
    flat: Any = [{"type": "function", "name": name, "parameters": {}} for name in names]
    own = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    gateway.upstream.replies += [mixed, mixed]
    async with (
        gateway.client() as client,
        client.responses.stream(model="tiny", input="Hi", tools=flat) as stream,
    ):
        async for _ in stream:
            pass
        response = await stream.get_final_response()
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == expected
    assert len({call.call_id for call in calls}) == 2
    assert response.output_text == "So."
    headers = {"x-api-key": gateway.keys.agent}
    body = {"model": "tiny", "max_tokens": 9, "stream": True, "messages": ASK, "tools": own}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.url}/v1/messages", json=body) as answer,
    ):
        message = message_of(events(await answer.read()))
    blocks = [block for block in message["content"] if block["type"] == "tool_use"]
    assert [(block["name"], block["input"]) for block in blocks] == expected
    assert all(block["id"].startswith("toolu_") for block in blocks)
    turns = await gateway.rows("SELECT reply FROM turns")
    assert len(turns) == 2
    for turn in turns:
        stored = [call["function"] for call in turn["reply"]["tool_calls"]]
        assert [(one["name"], json.loads(one["arguments"])) for one in stored] == expected
        assert turn["reply"]["content"] == "So."


async def test_turns_are_continued_and_queued_for_judging(gateway: Texts) -> None:
    gateway.upstream.replies += [
        [
            {"tool_calls": [{"index": 0, "id": "call_0", "function": {"name": "look"}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
            {"finish": "tool_calls"},
        ],
        says("done"),
    ]
    told: list[Any] = list(ASK)
    tools: Any = TOOLS
    async with gateway.client() as client:
        first = await client.chat.completions.create(model="tiny", messages=told, tools=tools)
        [choice] = first.choices
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls or []
        assert call.id.startswith("call_")
        assert call.id != "call_0"
        told.append(choice.message.model_dump(exclude_none=True))
        told.append({"role": "tool", "tool_call_id": call.id, "content": "a fox"})
        second = await client.chat.completions.create(model="tiny", messages=told, tools=tools)
    assert second.choices[0].message.content == "done"
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert (two["parent_id"], two["session_id"]) == (one["id"], one["session_id"])
    assert (two["shared_len"], two["branch_reason"]) == (0, "no_token_ids")
    [job] = await gateway.rows("SELECT turn_id, state FROM judgements")
    assert (job["turn_id"], job["state"]) == (one["id"], "queued")


async def test_choices_are_requests_of_their_own(gateway: Texts) -> None:
    for text in ("fox", "dog"):
        gateway.upstream.replies.append(says(text))
    async with gateway.client() as client:
        reply = await client.chat.completions.create(model="tiny", messages=ASK, n=2, seed=5)
    assert sorted(str(choice.message.content) for choice in reply.choices) == ["dog", "fox"]
    assert sorted(request["seed"] for request in gateway.upstream.requests) == [5, 6]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (11, 10)


@pytest.mark.parametrize(
    ("refusal", "status"), [((400, {"error": {"message": "too long"}}), 400), ((401, {}), 503)]
)
async def test_errors_are_the_gateways_own(
    gateway: Texts, refusal: tuple[int, Any], status: int
) -> None:
    gateway.upstream.refuse.append(refusal)
    async with gateway.client() as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="tiny", messages=ASK)
    assert caught.value.status_code == status
    assert ("too long" in caught.value.message) == (status == 400)
    assert await gateway.rows("SELECT 1 FROM turns") == []


async def test_a_client_that_leaves_stops_the_upstream(gateway: Texts) -> None:
    gateway.upstream.delay_s = 0.05
    gateway.upstream.replies.append(says(*["word "] * 100))
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    body = {"model": "tiny", "messages": ASK, "stream": True}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer:
            assert await first_event(answer)
        async with asyncio.timeout(120):
            while not gateway.upstream.dropped:
                await asyncio.sleep(0.02)
    turn = await gateway.until("SELECT * FROM turns")
    assert (turn["finish_reason"], turn["untrainable_reason"]) == ("abort", "aborted")


async def test_it_stands_in_while_no_engine_with_ids_serves(
    database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    async with FakeOpenAI() as upstream, FakeSglang(model_path=tiny_model) as sglang:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, tiny_model, sglang.url, tmp_path)
        values["engines"] += (EngineSettings(kind="openai", name="spare", url=upstream.url),)
        async with running_gateway(Settings(**values), keys) as running, running.client() as client:
            async with asyncio.timeout(120):
                while not all(one["healthy"] for one in running.services.pool.describe()):
                    await asyncio.sleep(0.01)

            async def engine_of(messages: Any) -> str:
                reply = await client.chat.completions.create(model="tiny", messages=messages)
                rows = await running.rows(
                    "SELECT engine FROM turns WHERE reply ->> 'content' = $1",
                    reply.choices[0].message.content,
                )
                return str(rows[0]["engine"])

            tokenizer = running.services.tokenizer
            sglang.replies.append(tokenizer.encode("from ids<|im_end|>"))
            assert await engine_of(ASK) == "engine"
            await sglang.stop()
            with pytest.raises(openai.InternalServerError):
                await engine_of(ASK)
            upstream.replies.append(says("from text"))
            async with asyncio.timeout(120):
                while not running.services.pool.text_only(keys.lineage_id):
                    await asyncio.sleep(0.01)
            assert await engine_of(ASK) == "spare"
            assert upstream.requests[-1]["model"] == "tiny"
            # Back again, the history that came as text is rendered in full.
            await sglang.start()
            async with asyncio.timeout(120):
                while running.services.pool.text_only(keys.lineage_id):
                    await asyncio.sleep(0.01)
            sglang.replies.append(tokenizer.encode("ids again<|im_end|>"))
            told = [
                *ASK,
                {"role": "assistant", "content": "from text"},
                {"role": "user", "content": "more"},
            ]
            assert await engine_of(told) == "engine"


async def test_a_bare_prompt_is_no_message(gateway: Texts) -> None:
    async with gateway.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="tiny", prompt="The fox")
    assert caught.value.param == "prompt"
    assert gateway.upstream.requests == []


async def test_engines_of_text_need_no_model_of_ours(database_url: str, tmp_path: Path) -> None:
    async with FakeOpenAI() as upstream:
        upstream.replies.append(says("jumps ", "over"))
        keys = await make_keys(database_url, "theirs")
        values = gateway_values(database_url, tmp_path, "", tmp_path)
        values["model"] = {"name": "theirs"}
        values["engines"] = ({"kind": "openai", "url": upstream.url},)
        async with running_gateway(Settings(**values), keys) as gateway:
            async with gateway.client() as client:
                reply = await client.chat.completions.create(
                    model="theirs",
                    messages=ASK,  # type: ignore[arg-type]
                    logprobs=True,
                )
                assert reply.choices[0].message.content == "jumps over"
                assert reply.usage is not None
                details = reply.usage.completion_tokens_details
                assert details is not None
                assert details.reasoning_tokens == 2
                with pytest.raises(openai.BadRequestError, match="takes messages only"):
                    await client.completions.create(model="theirs", prompt="The fox")
            headers = {"authorization": f"Bearer {keys.agent}"}
            async with aiohttp.ClientSession(headers=headers) as http:
                body = {"model": "theirs", "messages": ASK}
                url = f"{gateway.url}/v1/messages/count_tokens"
                async with http.post(url, json=body) as answer:
                    assert answer.status == 400
                    assert (await answer.json())["type"] == "error"
            [turn] = await gateway.rows("SELECT untrainable_reason, reasoning_tokens FROM turns")
    assert turn == {"untrainable_reason": "no_token_ids", "reasoning_tokens": 2}


async def test_engines_of_tokens_do(database_url: str, tmp_path: Path) -> None:
    values = gateway_values(database_url, tmp_path, "http://127.0.0.1:9", tmp_path)
    values["model"] = {"name": "tiny"}
    with pytest.raises(ConfigError, match=r"model\.path"):
        await Services.open(Settings(**values))
