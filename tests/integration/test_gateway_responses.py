"""The Responses API over real sockets, with the official client, a real Postgres, a fake engine."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import openai
import pytest

from gateway.records import new_id
from tests.fixtures_gateway import Gateway, fake_gateway
from tests.unit.chat_models import REASONING, write_model

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
CALLS = f"<think>\nTwo cities.\n</think>\n\nLet me see.\n{CALL}\n{CALL.replace('Oslo', 'Rome')}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and a template with reasoning and tools."""
    return write_model(tmp_path_factory.mktemp("reasons") / "model", REASONING)


@pytest.fixture
async def gateway(database_url: str, model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fake_gateway(database_url, model, tmp_path) as running:
        yield running


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with gateway.client() as client:
        yield client


async def test_a_stream_is_what_was_sampled(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    ids = gateway.says(CALLS)
    async with client.responses.stream(model="tiny", input="Weather?", tools=[TOOL]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    ends = ("response.completed", "response.incomplete", "response.failed")
    assert [event.type for event in events if event.type in ends] == ["response.completed"]
    reasoning, message, *calls = final.output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.content or []] == ["Two cities."]
    assert (message.type, final.output_text) == ("message", "Let me see.")
    said = [(call.name, json.loads(call.arguments)) for call in calls if "call" in call.type]
    assert said == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})]
    assert final.usage is not None
    assert final.usage.output_tokens == len(ids)
    assert final.usage.input_tokens == len(gateway.engine.requests[-1]["input_ids"])
    [turn] = await gateway.rows("SELECT * FROM turns")
    assert final.id == f"resp_{turn['id'].hex}"
    assert (turn["dialect"], turn["finish_reason"]) == ("openai_responses", "tool_calls")
    assert turn["stream_mismatch"] is False
    assert [call["id"] for call in turn["reply"]["tool_calls"]] == [
        call.call_id for call in calls if call.type == "function_call"
    ]


async def told(client: openai.AsyncOpenAI, *, stream: bool, **asked: Any) -> dict[str, Any]:
    """A response as its request was answered, from the end of a stream or whole."""
    if not stream:
        return json.loads((await client.responses.with_raw_response.create(**asked)).text)
    events = [event async for event in await client.responses.create(stream=True, **asked)]
    return events[-1].response.to_dict(mode="json")


async def read_again(client: openai.AsyncOpenAI, id_: str) -> dict[str, Any]:
    return json.loads((await client.responses.with_raw_response.retrieve(id_)).text)


#: All that a response repeats, none with its default.
FULL: dict[str, Any] = {
    "instructions": "Be brief. ",
    "max_output_tokens": 199,
    "metadata": {"a": "b", "type": "é"},
    "parallel_tool_calls": True,
    "prompt_cache_key": "cached",
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "person",
    "store": True,
    "temperature": 0.25,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function",
                                                                  "name": "get_weather"}]},
    "tools": [
        {"type": "web_search", "search_context_size": "low"},
        {"type": "namespace", "name": "sky", "description": "Of the sky.",
         "tools": [{**TOOL, "strict": True}]},
        {"type": "function", "name": "other", "parameters": None, "strict": None},
    ],
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncation": "auto",
    "user": "somebody",
}  # fmt: skip


async def test_whole_and_stored_are_the_same(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": "tiny", "input": "Weather?", **FULL}
    asked["include"] = ["message.output_text.logprobs"]
    both = []
    for stream in (True, False):
        gateway.says(CALLS)
        answer = await told(client, stream=stream, **asked)
        both.append(answer)
        assert {name: answer[name] for name in FULL} == FULL
        reasoning, message, *calls = answer["output"]
        assert [part["text"] for part in reasoning["summary"]] == ["Two cities."]
        assert [call["namespace"] for call in calls] == ["sky", "sky"]
        tokens = message["content"][0]["logprobs"]
        # They spell the message, and what was in a token with an end of it.
        spelled = b"".join(bytes(token["bytes"]) for token in tokens).decode()
        assert spelled.strip() == message["content"][0]["text"] == "Let me see."
        assert [len(token["top_logprobs"]) for token in tokens] == [2] * len(tokens)
        stored = await read_again(client, answer["id"])
        for token in tokens:
            # The fake engine's have more digits than a model's.
            token["logprob"] = struct.unpack("f", struct.pack("f", token["logprob"]))[0]
        assert stored == answer
        items = await client.responses.input_items.list(answer["id"])
        assert [(item.type, item.role, item.content[0].text) for item in items.data] == [
            ("message", "user", "Weather?")
        ]
    # A stream and a whole reply differ in what is minted alone.
    streamed, whole = both
    for name in ("id", "created_at", "output", "usage"):
        streamed.pop(name), whole.pop(name)
    assert streamed == whole


async def test_more_likely_tokens_than_are_kept_are_not_told_again(
    gateway: Gateway, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = gateway.says("fox dog")
    monkeypatch.setattr("gateway.pipeline.turn._MOST_RANKED", 3 * len(ids) - 1)
    include: Any = ["message.output_text.logprobs"]
    answer = await told(
        client, stream=False, model="tiny", input="Hi", include=include, top_logprobs=3
    )
    stored = await read_again(client, answer["id"])
    shown, again = (body["output"][0]["content"][0].pop("logprobs") for body in (answer, stored))
    assert stored == answer
    assert [token["token"] for token in again] == [token["token"] for token in shown]
    assert [len(token["top_logprobs"]) for token in shown] == [3] * len(shown)
    assert [token["top_logprobs"] for token in again] == [[]] * len(shown)


async def test_a_small_response_is_read_again_as_it_was(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    """Defaults of the deployment are no fields of the request."""
    for stream in (True, False):
        gateway.says("fox")
        answer = await told(client, stream=stream, model="tiny", input="Hi")
        assert (answer["temperature"], answer["tools"], answer["metadata"]) == (1.0, [], {})
        assert await read_again(client, answer["id"]) == answer


async def test_later_turns_are_read_again_as_they_were(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    """Instructions and tools stand once in a session, where they were new."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "s", "schema": schema, "strict": True}
    tools = [{**TOOL, "strict": True}]
    steps: list[dict[str, Any]] = [
        {"instructions": "Be brief. ", "tools": tools},
        {"instructions": "Be brief. ", "tools": tools, "metadata": {"step": "two"}},
        {"instructions": "Be long.", "tools": tools, "tool_choice": "none"},
        {"instructions": "Be long.", "tools": tools, "user": "u"},
        {"text": {"format": form}},
        {"instructions": ""},
    ]
    answers: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        gateway.says('{"a": 1}')
        previous = answers[-1]["id"] if answers else None
        step["previous_response_id"] = previous
        answers.append(
            await told(client, stream=bool(number % 2), model="tiny", input=f"u{number}", **step)
        )
        assert {name: answers[-1][name] for name in step} == step
    for answer in answers:
        assert await read_again(client, answer["id"]) == answer
    rows = await gateway.rows("SELECT response_fields FROM turns ORDER BY id")
    kept = [row["response_fields"] for row in rows]
    assert [fields.get("instructions") for fields in kept] == [
        True, True, "Be long.", True, None, "",
    ]  # fmt: skip
    assert [fields.get("tools") for fields in kept] == [{"strict": True}] * 4 + [None] * 2


async def test_what_is_not_to_be_read_is_not_kept_for_it(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    for text in ("fox", "dog", "cat"):
        gateway.says(text)
    asked: Any = {"model": "tiny", "input": "Hi", "metadata": {"a": "b"}}
    await client.responses.create(**asked, store=False)
    forgotten = await client.responses.create(**asked)
    await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hu"}], metadata={"a": "b"}, store=True
    )
    sql = "SELECT response_fields -> 'metadata' AS said, request_hash FROM turns ORDER BY id"
    rows = await gateway.rows(sql)
    assert [row["said"] for row in rows] == [None, {"a": "b"}, None]
    # They are no part of what makes requests equal.
    assert rows[0]["request_hash"] == rows[1]["request_hash"]
    await client.responses.delete(forgotten.id)
    assert [row["said"] for row in await gateway.rows(sql)] == [None] * 3


async def test_items_sent_back_extend_the_turn(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.says(CALLS)
    gateway.says("Cold and warm.")
    asked: list[Any] = [{"role": "user", "content": "Weather?"}]
    first = await client.responses.create(model="tiny", input=asked, tools=[TOOL])
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "9"}
        for item in first.output
        if item.type == "function_call"
    ]
    again = [*asked, *(item.model_dump() for item in first.output), *results]
    second = await client.responses.create(model="tiny", input=again, tools=[TOOL], stream=False)
    assert second.output_text == "Cold and warm."
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert (two["parent_id"], two["branch_reason"]) == (one["id"], None)
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
    [state] = await gateway.rows("SELECT * FROM next_states")
    assert (state["turn_id"], state["role"], len(state["messages"])) == (one["id"], "tool", 2)


async def test_items_are_referred_to(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    gateway.says(CALLS)
    gateway.says("Cold and warm.")
    first = await client.responses.create(model="tiny", input="Weather?", tools=[TOOL])
    told: list[Any] = [{"role": "user", "content": "Weather?"}]
    told += [{"type": "item_reference", "id": item.id} for item in first.output]
    told += [
        {"type": "function_call_output", "call_id": item.call_id, "output": "9"}
        for item in first.output
        if item.type == "function_call"
    ]
    await client.responses.create(model="tiny", input=told, tools=[TOOL])
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert (two["parent_id"], two["branch_reason"]) == (one["id"], None)
    async with gateway.client(gateway.keys.stranger) as stranger:
        with pytest.raises(openai.NotFoundError):
            await stranger.responses.create(model="tiny", input=told, tools=[TOOL])


async def test_words_after_a_call_are_an_item_in_every_form(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    text = f"<think>\nHm.\n</think>\n\nFirst.\n{CALL}\nThen this."
    for said in (text, text, "Cold.", "Warm."):
        gateway.says(said)
    ask: Any = {"model": "tiny", "tools": [TOOL]}
    stream = await client.responses.create(input="Weather?", stream=True, **ask)
    *_, last = [event async for event in stream]
    streamed = last.response
    whole = await client.responses.create(input="Weather?", **ask)
    for reply in (streamed, whole):
        kinds = [item.type for item in reply.output]
        assert kinds == ["reasoning", "message", "function_call", "message"]
        assert reply.output_text == "First.Then this."
        stored = await client.responses.retrieve(reply.id)
        assert stored.model_dump()["output"] == reply.model_dump()["output"]
        told: list[Any] = [{"role": "user", "content": "Weather?"}]
        told += [{"type": "item_reference", "id": item.id} for item in reply.output]
        for item in reply.output:
            if item.type == "function_call":
                result = {"type": "function_call_output", "call_id": item.call_id, "output": "9"}
                told.append(result)
        await client.responses.create(input=told, **ask)
    turns = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert [turn["stream_mismatch"] for turn in turns] == [False] * 4
    for before, after in zip(turns[:2], turns[2:], strict=True):
        assert (after["parent_id"], after["branch_reason"]) == (before["id"], None)
        assert before["reply"]["order"] == [
            ["reasoning", 3],
            ["text", 6],
            ["call", 1],
            ["text", 10],
        ]


async def test_the_stored_conversation_is_continued(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    texts = ["fox", "dog", "bird"]
    previous: str | None = None
    for number, text in enumerate(texts):
        gateway.says(text)
        reply = await client.responses.create(
            model="tiny",
            instructions="Be brief.",
            input=f"u{number}",
            previous_response_id=previous,
            stream=False,
        )
        assert (reply.output_text, reply.previous_response_id) == (text, previous)
        previous = reply.id
    turns = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert [turn["parent_id"] for turn in turns] == [None, turns[0]["id"], turns[1]["id"]]
    assert len({turn["session_id"] for turn in turns}) == 1
    prompts = [request["input_ids"] for request in gateway.engine.requests]
    shown = gateway.services.tokenizer.decode(prompts[2])
    for said in ("Be brief.", "u0", "fox", "u1", "dog", "u2"):
        assert shown.count(said) == 1
    assert prompts[2][: len(prompts[1])] == prompts[1]
    listed = await client.responses.input_items.list(previous or "", order="asc", limit=3)
    assert [item.content[0].text for item in listed.data] == ["u0", "fox", "u1"]
    assert listed.data[1].id == f"msg_{turns[0]['id'].hex}0000"
    rest = await client.responses.input_items.list(
        previous or "", order="asc", after=listed.data[-1].id
    )
    assert [item.content[0].text for item in rest.data] == ["dog", "u2"]
    assert [listed.has_more, rest.has_more] == [True, False]
    newest = await client.responses.input_items.list(previous or "", limit=1)
    assert [item.content[0].text for item in newest.data] == ["u2"]


async def test_two_branches_of_one_response(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    """Equal conversations are told apart by the id that is continued."""
    for text in ("fox", "fox", "a", "b"):
        gateway.says(text)
    one = await client.responses.create(model="tiny", input="Hi")
    two = await client.responses.create(model="tiny", input="Hi")
    for first in (one, two):
        await client.responses.create(model="tiny", input="On", previous_response_id=first.id)
    turns = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert [turn["parent_id"] for turn in turns[2:]] == [turn["id"] for turn in turns[:2]]
    assert turns[2]["session_id"] != turns[3]["session_id"]


async def test_items_tell_equal_conversations_apart(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    for text in ("fox", "fox", "a", "b"):
        gateway.says(text)
    asked: list[Any] = [{"role": "user", "content": "Hi"}]
    one = await client.responses.create(model="tiny", input=asked, store=False)
    two = await client.responses.create(model="tiny", input=asked, store=False)
    for first in (one, two):
        again = [*asked, *(item.model_dump() for item in first.output), *asked]
        await client.responses.create(model="tiny", input=again, store=False)
    turns = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert [turn["parent_id"] for turn in turns[2:]] == [turn["id"] for turn in turns[:2]]
    assert [turn["branch_reason"] for turn in turns] == [None] * 4


async def test_what_may_not_be_read_is_not_found(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    for text in ("fox", "dog", "cat"):
        gateway.says(text)
    kept = await client.responses.create(model="tiny", input="Hi")
    unkept = await client.responses.create(model="tiny", input="Ho", store=False)
    chat = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hu"}]
    )
    of_chat = f"resp_{chat.id.removeprefix('chatcmpl-')}"
    unknown = (unkept.id, of_chat, f"resp_{new_id().hex}", "resp_1")

    async def refused(by: openai.AsyncOpenAI, id_: str) -> None:
        with pytest.raises(openai.NotFoundError):
            await by.responses.retrieve(id_)
        with pytest.raises(openai.NotFoundError):
            await by.responses.input_items.list(id_)
        with pytest.raises(openai.NotFoundError):
            await by.responses.delete(id_)
        with pytest.raises(openai.BadRequestError) as caught:
            await by.responses.create(model="tiny", input="On", previous_response_id=id_)
        assert (caught.value.code, caught.value.param) == (
            "previous_response_not_found",
            "previous_response_id",
        )

    for id_ in unknown:
        await refused(client, id_)
    async with gateway.client(gateway.keys.stranger) as stranger:
        await refused(stranger, kept.id)
    async with gateway.client(gateway.keys.admin) as admin:
        with pytest.raises(openai.PermissionDeniedError):
            await admin.responses.retrieve(kept.id)
    assert (await client.responses.retrieve(kept.id)).id == kept.id
    # What is not kept for its client is captured all the same.
    assert len(await gateway.rows("SELECT 1 FROM turns")) == 3
    await client.responses.delete(kept.id)
    await refused(client, kept.id)
    [turn] = await gateway.rows("SELECT * FROM turns WHERE id = $1", UUID(kept.id[5:]))
    assert turn["reply"]["content"] == "fox"


async def test_a_reply_that_was_cut_is_incomplete(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.says("one two three four five six seven")
    events = [
        event
        async for event in await client.responses.create(
            model="tiny", input="Count.", max_output_tokens=3, stream=True
        )
    ]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details is not None
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    assert events[-1].response.usage is not None
    assert events[-1].response.usage.output_tokens == 3


async def test_an_engine_that_dies_fails_the_response_once(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.engine.faults.die_after = 2
    gateway.says("the quick brown fox jumps over the lazy dog")
    stream = await client.responses.create(model="tiny", input="Go.", stream=True)
    events = [event async for event in stream]
    assert [e.type for e in events if e.type.endswith((".failed", ".completed"))] == [
        "response.failed"
    ]
    assert events[-1].response.error is not None
    assert events[-1].response.error.code == "server_error"
    async with asyncio.timeout(120):
        while not (rows := await gateway.rows("SELECT * FROM turns")):
            await asyncio.sleep(0.02)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(f"resp_{rows[0]['id'].hex}")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b'{"model":"tiny"}', 400, "input"),
        (b'{"model":"gpt","input":"x"}', 404, "model"),
        (b'{"model":"tiny","input":"' + b"a b " * 9000 + b'"}', 400, "input"),
        (b'{"model":"tiny","input":[{"type":"item_reference","id":"msg_1"}]}', 404, "input"),
        (b'{"model":"tiny","input":"' + b"x" * 300_000 + b'"}', 413, None),
    ],
)
async def test_bad_input_gets_one_clear_error(
    gateway: Gateway, body: bytes, status: int, param: str | None
) -> None:
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.url}/v1/responses", data=body) as answer,
    ):
        error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (status, param)
    assert await gateway.rows("SELECT 1 FROM turns") == []


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=msg_1", "limit=101"])
async def test_a_page_that_there_is_not(
    gateway: Gateway, client: openai.AsyncOpenAI, query: str
) -> None:
    gateway.says("fox")
    reply = await client.responses.create(model="tiny", input="Hi")
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    url = f"{gateway.url}/v1/responses/{reply.id}/input_items?{query}"
    async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == query.partition("=")[0]


async def test_codex_gets_its_turn_state(gateway: Gateway) -> None:
    headers = {
        "authorization": f"Bearer {gateway.keys.agent}",
        "x-codex-window-id": "w:0",
        "session-id": "s",
        "thread-id": "s",
    }
    body = {"model": "tiny", "input": "Hi", "stream": True, "store": False}
    async with aiohttp.ClientSession(headers=headers) as http:

        async def state(**more: str) -> str | None:
            gateway.says("fox")
            async with http.post(f"{gateway.url}/v1/responses", json=body, headers=more) as answer:
                assert b"event: response.completed\n" in await answer.read()
                return answer.headers.get("x-codex-turn-state")

        minted = await state()
        assert minted
        assert await state(**{"x-codex-turn-state": "sent before"}) == "sent before"
    [session] = await gateway.rows("SELECT external_id FROM sessions")
    assert session["external_id"] == "s"
    async with aiohttp.ClientSession(headers={"authorization": headers["authorization"]}) as http:
        assert await state() is None


async def test_the_oldest_items_are_dropped_where_a_client_lets_them(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    """`truncation: auto`: the instructions and the newest items stay."""
    items: Any = []
    for number in range(60):
        items.append({"role": "user", "content": f"question{number} " + "fox " * 20})
        items.append({"role": "assistant", "content": f"answer{number}."})
    items.append({"role": "user", "content": "And the last?"})
    asked: Any = {"model": "tiny", "instructions": "Be brief.", "max_output_tokens": 50}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(input=items, truncation="disabled", **asked)
    assert caught.value.code == "context_length_exceeded"
    gateway.says("The last.")
    first = await client.responses.create(input=items, truncation="auto", **asked)
    assert (first.output_text, first.truncation) == ("The last.", "auto")
    context = gateway.services.tokenizer.facts.context_length
    [prompt] = [body["input_ids"] for body in gateway.engine.requests]
    # Room for the reply, and no more than one exchange (below 100 ids) beyond what had to go.
    assert context - 150 < len(prompt) <= context - 50
    assert first.usage is not None
    assert first.usage.input_tokens == len(prompt)
    shown = gateway.services.tokenizer.decode(prompt)
    assert "Be brief." in shown
    assert "question0 " not in shown
    kept = [number for number in range(60) if f"answer{number}." in shown]
    assert kept == list(range(kept[0], 60))
    assert kept[0] > 10
    assert shown.rstrip().endswith("assistant")
    # What came before by an id counts as well.
    gateway.says("On it goes.")
    second = await client.responses.create(
        input="question60 " + "fox " * 400,
        previous_response_id=first.id,
        truncation="auto",
        **asked,
    )
    assert second.output_text == "On it goes."
    prompt = gateway.engine.requests[-1]["input_ids"]
    assert len(prompt) <= context - 50
    shown = gateway.services.tokenizer.decode(prompt)
    assert ("The last." in shown, "question60 " in shown) == (True, True)
    one, two = await gateway.rows("SELECT id, parent_id, session_id FROM turns ORDER BY id")
    assert (two["parent_id"], two["session_id"]) == (one["id"], one["session_id"])
    # One item that is too long by itself stays, and is told with its whole length.
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(input="fox " * 9000, truncation="auto", **asked)
    assert caught.value.code == "context_length_exceeded"
