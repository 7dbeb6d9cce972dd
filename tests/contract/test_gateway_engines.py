"""The whole gateway, asked the same of the fake engine and of the real SGLang."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.fakes import FakeSglang
from tests.running import Gateway, as_stored, gateway_over

QUESTION = "The quick brown fox?"
ASK: list[Any] = [{"role": "user", "content": QUESTION}]
#: `<|im_end|>`: likelier, replies end by themselves within the context; never, they do not.
ENDS, NEVER_ENDS = {"2": 6.0, "0": -100.0, "1": -100.0}, {"2": -100.0}
#: Tokens that a reply goes on after, and that no client sees.
HIDDEN = ("<|endoftext|>", "<|im_start|>")
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["fox", "dog"]}, "legs": {"enum": [2, 4]}},
    "required": ["animal", "legs"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("look", "feed")
]


@pytest.fixture
async def obliging(tiny_model: Path) -> AsyncIterator[FakeSglang]:
    """A fake that writes the shortest thing which a structural tag allows."""
    async with FakeSglang(model_path=tiny_model, chunk_delay_s=0.002) as fake:

        def obey(body: dict[str, Any]) -> Sequence[int] | None:
            tag = body["sampling_params"].get("structural_tag")
            if tag is None or fake.tokenizer is None:
                return None
            [call, *_] = json.loads(tag)["format"]["tags"]
            text = call["begin"] + '{"animal": "fox", "legs": 4}' + call["end"]
            return [*fake.tokenizer.encode(text).ids, fake.eos_id]

        fake.script = obey
        yield fake


@pytest.fixture(params=["fake", pytest.param("sglang", marks=pytest.mark.sglang)])
def engine_url(request: pytest.FixtureRequest) -> str:
    if request.param == "fake":
        return str(request.getfixturevalue("obliging").url)
    return str(request.getfixturevalue("sglang_url"))


@pytest.fixture
async def gateway(
    database_url: str, tiny_model: Path, engine_url: str, tmp_path: Path
) -> AsyncIterator[Gateway]:
    async with gateway_over(database_url, tiny_model, engine_url, tmp_path) as running:
        yield running


async def post(gateway: Gateway, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """(status, the decoded answer; the list of decoded events where it streams)."""
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.url}/v1/{path}", json=body) as answer,
    ):
        if answer.content_type != "text/event-stream":
            return answer.status, await answer.json()
        lines = (await answer.text()).splitlines()
    data = [line[6:] for line in lines if line.startswith("data: ")]
    return answer.status, [json.loads(line) for line in data if line != "[DONE]"]


def body_of(path: str, **values: Any) -> dict[str, Any]:
    """One question without sampling, in the form of each protocol."""
    limit = {"responses": "max_output_tokens"}.get(path, "max_tokens")
    asked: dict[str, Any] = {"model": "tiny", "temperature": 0, limit: 12, **values}
    if path == "responses":
        asked["input"] = QUESTION
    elif path == "completions":
        asked["prompt"] = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    else:
        asked["messages"] = ASK
    return asked


def said(path: str, answer: Any) -> str:
    """The text of a reply, streamed or not."""
    if path == "chat/completions":
        if isinstance(answer, dict):
            return str(answer["choices"][0]["message"]["content"])
        return "".join(
            choice["delta"].get("content") or "" for event in answer for choice in event["choices"]
        )
    if path == "completions":
        events = [answer] if isinstance(answer, dict) else answer
        return "".join(choice["text"] for event in events for choice in event["choices"])
    if path == "messages":
        if isinstance(answer, dict):
            return "".join(block["text"] for block in answer["content"])
        deltas = [event["delta"] for event in answer if event["type"] == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas)
    if isinstance(answer, dict):
        return "".join(part["text"] for item in answer["output"] for part in item["content"])
    deltas = [event["delta"] for event in answer if event["type"] == "response.output_text.delta"]
    return "".join(deltas)


def ending(path: str, answer: Any) -> list[str]:
    """Every reason for the end that the client is told."""
    events = [answer] if isinstance(answer, dict) else answer
    if path in ("chat/completions", "completions"):
        reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    elif path == "messages":
        reasons = [event.get("stop_reason") for event in events]
        reasons += [event["delta"].get("stop_reason") for event in events if "delta" in event]
    elif isinstance(answer, dict):
        reasons = [answer["incomplete_details"]["reason"]]
    else:
        last = [event["response"] for event in events if event["type"] == "response.incomplete"]
        reasons = [response["incomplete_details"]["reason"] for response in last]
    return [reason for reason in reasons if reason]


PATHS = {
    "chat/completions": "length",
    "completions": "length",
    "messages": "max_tokens",
    "responses": "max_output_tokens",
}


async def test_every_protocol_tells_the_same_reply_streamed_or_not(gateway: Gateway) -> None:
    texts = {}
    for path, reason in PATHS.items():
        for stream in (False, True):
            status, answer = await post(gateway, path, body_of(path, stream=stream))
            assert status == 200, answer
            assert ending(path, answer) == [reason]
            texts[path, stream] = said(path, answer)
    assert len(set(texts.values())) == 1, texts
    turns = await gateway.rows(
        "SELECT prompt_len, completion_len, untrainable_reason, stream_mismatch,"
        " octet_length(sampled_ids) AS ids, octet_length(logprobs) AS logprobs FROM turns"
    )
    assert len(turns) == 2 * len(PATHS)
    for turn in turns:
        assert turn == {
            "prompt_len": turns[0]["prompt_len"],
            "completion_len": 12,
            "untrainable_reason": "temperature_zero",
            "stream_mismatch": False,
            "ids": 48,
            "logprobs": 48,
        }


async def test_usage_is_what_the_engine_saw_and_sampled(gateway: Gateway) -> None:
    async with gateway.client() as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=ASK,
            max_tokens=9,
            logit_bias=NEVER_ENDS,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    usage = chunks[-1].usage
    assert usage is not None
    assert not chunks[-1].choices
    [turn] = await gateway.rows("SELECT prompt_len, completion_len, finish_reason FROM turns")
    assert (usage.prompt_tokens, usage.completion_tokens) == (turn["prompt_len"], 9)
    assert turn["completion_len"] == 9
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == ["length"] == [turn["finish_reason"]]


async def test_a_stop_string_is_never_shown(gateway: Gateway) -> None:
    async with gateway.client() as client:

        async def ask(stop: list[str] | None) -> Any:
            reply = await client.chat.completions.create(
                model="tiny", messages=ASK, temperature=0, max_tokens=24, stop=stop
            )
            return reply.choices[0]

        whole = (await ask(None)).message.content
        # A part that the text has once, and not at its beginning.
        stop = next(
            whole[at : at + 3]
            for at in range(4, len(whole) - 3)
            if whole.count(whole[at : at + 3]) == 1 and "\ufffd" not in whole[at : at + 3]
        )
        cut = await ask([stop])
    assert cut.message.content == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


async def test_choices_are_turns_of_one_parent(gateway: Gateway) -> None:
    async with gateway.client() as client:
        reply = await client.chat.completions.create(
            model="tiny", messages=ASK, n=3, max_tokens=16, logit_bias=NEVER_ENDS
        )
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in reply.choices}) == 3
    turns = await gateway.rows(
        "SELECT reply, parent_id, session_id, request_hash FROM turns ORDER BY id"
    )
    told = [as_stored(choice.message.content or "") for choice in reply.choices]
    assert [turn["reply"]["content"] for turn in turns] == told
    assert len({(turn["session_id"], turn["request_hash"]) for turn in turns}) == 1


async def test_logprobs_are_those_of_what_was_sampled(gateway: Gateway) -> None:
    async with gateway.client() as client:
        reply = await client.chat.completions.create(
            model="tiny",
            messages=ASK,
            logprobs=True,
            top_logprobs=3,
            max_tokens=8,
            logit_bias=NEVER_ENDS,
        )
    [choice] = reply.choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert [len(token.top_logprobs) for token in tokens] == [3] * 8
    # Halves of a character on both sides of what is not shown are one.
    shown = [bytes(token.bytes or ()) for token in tokens if token.token not in HIDDEN]
    assert b"".join(shown).decode(errors="replace") == choice.message.content
    [turn] = await gateway.rows("SELECT logprobs FROM turns")
    stored = memoryview(turn["logprobs"]).cast("f").tolist()
    assert [token.logprob for token in tokens] == pytest.approx(stored, abs=1e-6)


async def test_the_next_turn_extends_what_was_sampled(gateway: Gateway) -> None:
    async with gateway.client() as client:
        first = await client.chat.completions.create(
            model="tiny", messages=ASK, max_tokens=900, logit_bias=ENDS
        )
        [choice] = first.choices
        assert choice.finish_reason == "stop"
        told = {"role": "assistant", "content": choice.message.content}
        await client.chat.completions.create(
            model="tiny", messages=[*ASK, told, *ASK], max_tokens=4, logit_bias=NEVER_ENDS
        )
    one, two = await gateway.rows(
        "SELECT id, parent_id, prompt_len, completion_len, shared_len, branch_reason FROM turns"
        " ORDER BY depth"
    )
    assert (two["parent_id"], two["branch_reason"]) == (one["id"], None)
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
    assert two["prompt_len"] > two["shared_len"]


async def test_a_response_is_continued_by_its_id(gateway: Gateway) -> None:
    async with gateway.client() as client:
        first = await client.responses.create(model="tiny", input=QUESTION, max_output_tokens=16)
        second = await client.responses.create(
            model="tiny",
            input="And then?",
            previous_response_id=first.id,
            max_output_tokens=16,
        )
        read = await client.responses.retrieve(second.id)
    assert read.output_text == as_stored(second.output_text)
    one, two = await gateway.rows("SELECT id, parent_id FROM turns ORDER BY depth")
    assert two["parent_id"] == one["id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_named_tool_is_called_in_each_protocol(gateway: Gateway, stream: bool) -> None:
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    own = [{"name": tool["function"]["name"], "input_schema": SCHEMA} for tool in TOOLS]
    asked = {
        "chat/completions": {
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "feed"}},
            "parallel_tool_calls": False,
        },
        "responses": {
            "tools": flat,
            "tool_choice": {"type": "function", "name": "feed"},
            "parallel_tool_calls": False,
        },
        "messages": {
            "tools": own,
            "tool_choice": {"type": "tool", "name": "feed", "disable_parallel_tool_use": True},
        },
    }
    for path, values in asked.items():
        # Greedily, a model of random weights may write white space for ever.
        body = body_of(path, stream=stream, temperature=1, **values)
        body["max_output_tokens" if path == "responses" else "max_tokens"] = 600
        status, answer = await post(gateway, path, body)
        assert status == 200, answer
    turns = await gateway.rows(
        "SELECT reply, finish_reason, stream_mismatch, untrainable_reason FROM turns"
    )
    assert len(turns) == 3
    for turn in turns:
        [call] = turn["reply"]["tool_calls"]
        assert call["function"]["name"] == "feed"
        arguments = json.loads(call["function"]["arguments"])
        assert arguments["animal"] in ("fox", "dog")
        assert arguments["legs"] in (2, 4)
        assert (turn["finish_reason"], turn["stream_mismatch"]) == ("tool_calls", False)


async def test_prompts_of_ids_are_taken_as_they_stand(gateway: Gateway) -> None:
    tokenizer = gateway.services.tokenizer
    text = "The quick brown"
    ids = tokenizer.encode(text)
    async with gateway.client() as client:
        answers = [
            await client.completions.create(
                model="tiny", prompt=prompt, temperature=0, max_tokens=5
            )
            for prompt in (text, ids)
        ]
        assert answers[0].choices[0].text == answers[1].choices[0].text
        outside = tokenizer.facts.vocab_size
        with pytest.raises(openai.BadRequestError, match=str(outside)):
            await client.completions.create(model="tiny", prompt=[*ids, outside])
    lengths = await gateway.rows("SELECT prompt_len FROM turns")
    assert [row["prompt_len"] for row in lengths] == [len(ids)] * 2


async def test_a_prompt_beyond_the_context_is_told_with_both_numbers(gateway: Gateway) -> None:
    for path in ("chat/completions", "messages"):
        body = body_of(path) | {"messages": [{"role": "user", "content": "fox " * 2600}]}
        status, answer = await post(gateway, path, body)
        assert status == 400, answer
        numbers = [int(number) for number in re.findall(r"\d+", answer["error"]["message"])]
        assert 2048 in numbers
        assert any(number > 2600 for number in numbers)


async def test_a_client_that_leaves_frees_the_engine(gateway: Gateway) -> None:
    [engine] = gateway.services.pool.engines
    body = body_of("chat/completions", stream=True, n=2, max_tokens=1800, logit_bias=NEVER_ENDS)
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            async with asyncio.timeout(60):
                while not (await answer.content.readline()).startswith(b"data: "):
                    pass  # Comments, while nothing is sampled.
        async with asyncio.timeout(60):
            while (await engine.status()).running:
                await asyncio.sleep(0.02)
    await gateway.until("SELECT 1 FROM turns HAVING count(*) >= 1")
    turns = await gateway.rows("SELECT finish_reason, completion_len FROM turns")
    assert {turn["finish_reason"] for turn in turns} == {"abort"}
    assert all(turn["completion_len"] < 1800 for turn in turns)
