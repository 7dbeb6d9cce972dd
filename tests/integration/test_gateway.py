"""The gateway as clients see it: real sockets, a real Postgres, the fake engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import aiohttp
import openai
import pytest

from tests.dialects import first_event
from tests.fixtures_gateway import Gateway

ASK = [{"role": "user", "content": "The quick brown fox?"}]


async def test_a_streamed_reply_is_what_was_sampled(gateway: Gateway) -> None:
    ids = gateway.says("jumps over the lazy dog")
    client = gateway.client()
    stream = await client.chat.completions.create(
        model="tiny", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "jumps over the lazy dog"
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert [reason for reason in finishes if reason] == ["stop"]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == len(ids)
    [turn] = await gateway.rows("SELECT * FROM turns")
    assert chunks[0].id.endswith(turn["id"].hex)
    assert turn["sampled_ids"] == b"".join(id_.to_bytes(4, "little") for id_ in ids)
    assert len(turn["logprobs"]) == len(turn["sampled_ids"])
    assert turn["spans"] == [[0, 0, len(ids)]]
    assert (
        turn["prompt_len"] == usage.prompt_tokens == len(gateway.engine.requests[-1]["input_ids"])
    )
    assert (turn["trainable"], turn["untrainable_reason"]) == (True, None)
    await client.close()


async def test_a_turn_is_stored_when_the_client_sees_its_end(gateway: Gateway) -> None:
    gateway.says("dog")
    async with gateway.client() as client:
        reply = await client.chat.completions.create(model="tiny", messages=ASK)
        assert reply.choices[0].message.content == "dog"
        assert reply.choices[0].finish_reason == "stop"
        assert reply.choices[0].logprobs is None
        rows = await gateway.rows("SELECT id FROM turns")
    assert [row["id"] for row in rows] == [UUID(reply.id.removeprefix("chatcmpl-"))]


async def test_the_next_prompt_extends_recorded_ids(gateway: Gateway) -> None:
    gateway.says("fox")
    gateway.says("dog")
    async with gateway.client() as client:
        first = await client.chat.completions.create(model="tiny", messages=ASK)
        told = [
            *ASK,
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "brown"},
        ]
        await client.chat.completions.create(model="tiny", messages=told)
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    seen = [request["input_ids"] for request in gateway.engine.requests]
    sampled = [
        int.from_bytes(one["sampled_ids"][i : i + 4], "little")
        for i in range(0, len(one["sampled_ids"]), 4)
    ]
    assert seen[1][: len(seen[0]) + len(sampled)] == seen[0] + sampled
    assert (two["parent_id"], two["session_id"]) == (one["id"], one["session_id"])
    assert two["shared_len"] == len(seen[0]) + len(sampled)
    assert two["prompt_ids"] == b"".join(
        id_.to_bytes(4, "little") for id_ in seen[1][two["shared_len"] :]
    )
    assert two["messages"] == [{"role": "user", "content": "brown"}]
    [state] = await gateway.rows("SELECT * FROM next_states")
    assert (state["turn_id"], state["role"]) == (one["id"], "user")
    assert state["messages"] == [{"role": "user", "content": "brown"}]
    [job] = await gateway.rows("SELECT turn_id, state FROM judgements")
    assert (job["turn_id"], job["state"]) == (one["id"], "queued")
    kinds = await gateway.rows("SELECT kind FROM turns ORDER BY id")
    assert [row["kind"] for row in kinds] == ["main", "main"]


async def test_headers_name_session_and_kind(gateway: Gateway) -> None:
    gateway.says("fox")
    async with gateway.client() as client:
        await client.chat.completions.create(
            model="tiny",
            messages=ASK,
            extra_headers={"X-Session-Id": "mine", "X-Turn-Type": "side"},
        )
    [session] = await gateway.rows("SELECT external_id FROM sessions")
    [turn] = await gateway.rows("SELECT kind, kind_rule FROM turns")
    assert (session["external_id"], turn["kind"], turn["kind_rule"]) == ("mine", "side", "declared")


async def test_a_name_of_another_tenant_finds_nothing(gateway: Gateway) -> None:
    for key in (gateway.keys.agent, gateway.keys.stranger):
        gateway.says("fox")
        async with gateway.client(key) as client:
            await client.chat.completions.create(
                model="tiny", messages=ASK, extra_headers={"X-Session-Id": "same"}
            )
    rows = await gateway.rows("SELECT DISTINCT session_id FROM turns")
    assert len(rows) == 2


BAD: list[tuple[bytes, int, str | None]] = [
    (b"{", 400, None),
    (b"[]", 400, None),
    (b'{"model":"tiny"}', 400, "messages"),
    (b'{"model":"tiny","messages":[]}', 400, "messages"),
    (b'{"model":"tiny","messages":"hi"}', 400, "messages"),
    (b'{"model":"gpt","messages":[{"role":"user","content":"x"}]}', 404, "model"),
    (b'{"model":"tiny","temperature":9,"messages":[{"role":"user","content":"x"}]}', 400,
     "temperature"),
    (b'{"model":"tiny","messages":[{"role":"user","content":"' + b"a b " * 9000 + b'"}]}', 400,
     "messages"),
    (b'{"model":"tiny","messages":[{"role":"user","content":"' + b"x" * 300_000 + b'"}]}', 413,
     None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "param"), BAD)
async def test_bad_input_gets_one_clear_error(
    gateway: Gateway, body: bytes, status: int, param: str | None
) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"{gateway.url}/v1/chat/completions",
            data=body,
            headers={"authorization": f"Bearer {gateway.keys.agent}"},
        ) as answer,
    ):
        error = (await answer.json())["error"]
    assert answer.status == status
    assert error["message"]
    assert error["param"] == param or (error["param"] or "").startswith(param or "-")
    assert await gateway.rows("SELECT 1 FROM turns") == []


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-wrong"}, {"x-api-key": "no"}])
async def test_a_key_is_needed(gateway: Gateway, headers: dict[str, str]) -> None:
    async with aiohttp.ClientSession() as http:
        for path in ("chat/completions", "models"):
            method = "GET" if path == "models" else "POST"
            async with http.request(method, f"{gateway.url}/v1/{path}", headers=headers) as answer:
                assert answer.status == 401
                assert (await answer.json())["error"]["code"]


async def test_an_admin_key_does_not_infer(gateway: Gateway) -> None:
    async with gateway.client(gateway.keys.admin) as client:
        with pytest.raises(openai.PermissionDeniedError):
            await client.chat.completions.create(model="tiny", messages=ASK)


async def test_models_are_listed(gateway: Gateway) -> None:
    async with gateway.client() as client:
        listed = [model.id async for model in client.models.list()]
        assert listed == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "nextstate"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("gpt-4")


async def test_an_engine_that_is_down_is_said_once_and_clearly(gateway: Gateway) -> None:
    await gateway.engine.stop()
    async with gateway.client() as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="tiny", messages=ASK)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"]
    async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}/healthz") as answer:
        assert answer.status == 200


async def test_a_client_that_leaves_aborts_its_request(gateway: Gateway) -> None:
    gateway.engine.chunk_delay_s = 0.05
    gateway.says("fox " * 100)
    body = {"model": "tiny", "messages": ASK, "stream": True}
    async with aiohttp.ClientSession(
        headers={"authorization": f"Bearer {gateway.keys.agent}"}
    ) as http:
        async with http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer:
            assert await first_event(answer)
        async with asyncio.timeout(120):
            while not gateway.engine.aborted:
                await asyncio.sleep(0.02)
            while not (rows := await gateway.rows("SELECT * FROM turns")):
                await asyncio.sleep(0.02)
    [turn] = rows
    assert turn["finish_reason"] == "abort"
    assert (turn["trainable"], turn["untrainable_reason"]) == (False, "aborted")


async def test_a_silent_stream_carries_comments(gateway: Gateway) -> None:
    gateway.engine.chunk_delay_s = 0.8
    gateway.says("fox")
    body = {"model": "tiny", "messages": ASK, "stream": True}
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer,
    ):
        text = await answer.text()
    assert ": keep-alive\n\n" in text
    frames = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert frames[-1] == "[DONE]"
    said = "".join(
        choice["delta"].get("content") or ""
        for frame in frames[:-1]
        for choice in json.loads(frame)["choices"]
    )
    assert said == "fox"


async def test_an_engine_that_dies_in_mid_stream_ends_in_an_error_event(gateway: Gateway) -> None:
    gateway.engine.faults.die_after = 2
    gateway.says("the quick brown fox jumps over the lazy dog")
    async with gateway.client() as client:
        stream = await client.chat.completions.create(model="tiny", messages=ASK, stream=True)
        with pytest.raises(openai.APIError):
            _ = [chunk async for chunk in stream]
    async with asyncio.timeout(120):
        while not (rows := await gateway.rows("SELECT * FROM turns")):
            await asyncio.sleep(0.02)
    assert (rows[0]["finish_reason"], rows[0]["completion_len"]) == ("abort", 2)


async def test_admin_reads_what_happened_inside_its_tenant(gateway: Gateway) -> None:
    gateway.says("fox")
    async with gateway.client() as client:
        reply = await client.chat.completions.create(model="tiny", messages=ASK)
    headers = {"authorization": f"Bearer {gateway.keys.admin}"}
    async with aiohttp.ClientSession(headers=headers) as http:

        async def get(path: str) -> Any:
            async with http.get(f"{gateway.url}/admin/v1/{path}") as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        [session] = (await get("sessions"))["items"]
        assert (session["turns"], session["status"]) == (1, "open")
        [turn] = (await get(f"sessions/{session['id']}"))["items"]
        assert reply.id == f"chatcmpl-{UUID(turn['id']).hex}"
        assert turn["reply"]["content"] == "fox"
        hidden = await get(f"sessions/{session['id']}?content=false")
        assert "reply" not in hidden["items"][0]
        status = await get("status")
        assert (status["funnel"]["turns"], status["engines"][0]["name"]) == (1, "engine")
        [policy] = (await get("policies"))["items"]
        assert (policy["version"], policy["state"]) == (0, "live")
        assert (await get("train-steps"))["items"] == (await get("swaps"))["items"] == []
        async with http.get(f"{gateway.url}/admin/v1/sessions/{reply.id[-32:]}") as answer:
            assert answer.status == 404
            assert answer.content_type == "application/problem+json"
        async with http.get(f"{gateway.url}/admin/v1/sessions?cursor=x") as answer:
            assert answer.status == 400
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.get(f"{gateway.url}/admin/v1/sessions") as answer,
    ):
        assert answer.status == 403


async def test_feedback_is_stored_and_queues_another_judgement(gateway: Gateway) -> None:
    gateway.says("fox")
    async with gateway.client() as client:
        reply = await client.chat.completions.create(model="tiny", messages=ASK)
    turn_id = UUID(reply.id.removeprefix("chatcmpl-"))
    url = f"{gateway.url}/v1/turns/{turn_id}/feedback"
    async with aiohttp.ClientSession() as http:

        async def post(key: str, body: dict[str, Any]) -> int:
            headers = {"authorization": f"Bearer {key}", "idempotency-key": "once"}
            async with http.post(url, json=body, headers=headers) as answer:
                return answer.status

        assert await post(gateway.keys.stranger, {"thumbs": "up"}) == 404
        assert await post(gateway.keys.agent, {"score": 3}) == 400
        assert await post(gateway.keys.agent, {}) == 400
        assert await post(gateway.keys.agent, {"thumbs": "down"}) == 202
        assert await post(gateway.keys.agent, {"thumbs": "down"}) == 202
    [stored] = await gateway.rows("SELECT turn_id, score FROM feedback")
    assert (stored["turn_id"], stored["score"]) == (turn_id, -1.0)
    [job] = await gateway.rows("SELECT turn_id, state FROM judgements")
    assert (job["turn_id"], job["state"]) == (turn_id, "queued")


async def test_a_session_is_ended_by_its_client(gateway: Gateway) -> None:
    gateway.says("fox")
    headers = {"X-Session-Done": "true"}
    async with gateway.client() as client:
        await client.chat.completions.create(model="tiny", messages=ASK, extra_headers=headers)
    [session] = await gateway.rows("SELECT status, end_reason FROM sessions")
    assert (session["status"], session["end_reason"]) == ("closed", "client_done")
    [verdict] = await gateway.rows("SELECT outcome, reason FROM verdicts")
    assert (verdict["outcome"], verdict["reason"]) == ("unscored", "no_next_state")
