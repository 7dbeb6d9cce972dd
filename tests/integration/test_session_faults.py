"""Faults that users of such systems report of captured data and of sessions: none happens here.

Real sockets, a real Postgres and the fake engine; what needs the real one is in
`test_token_exactness`.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config import Settings
from gateway.records import new_id
from gateway.store.packing import unpack_ids
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway
from tests.proof.sessions.talker import DROPPING
from tests.running import gateway_values, make_keys, running_gateway
from tests.unit.chat_models import write_model

HELLO = {"role": "user", "content": "Hello"}
TOOLS = [{"type": "function", "function": {"name": "look"}}]
CALL = '<tool_call>{"name": "look", "arguments": {"animal": "%s"}}</tool_call>'


@pytest.fixture
async def thinking(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A model that thinks and calls tools; its template drops reasoning at each question."""
    model = write_model(tmp_path / "model", DROPPING)
    async with FakeSglang(model_path=model) as engine:
        keys = await make_keys(database_url, "tiny")
        settings = Settings(**gateway_values(database_url, model, engine.url, tmp_path))
        async with running_gateway(settings, keys) as running:
            yield Gateway(url=running.url, keys=keys, services=running.services, engine=engine)


async def send(
    gateway: Gateway,
    path: str,
    body: dict[str, Any] | bytes,
    *,
    key: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """(status, decoded body)."""
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    given = {"authorization": f"Bearer {key or gateway.keys.agent}", **(headers or {})}
    async with (
        aiohttp.ClientSession() as http,
        http.post(gateway.url + path, data=data, headers=given) as answer,
    ):
        return answer.status, json.loads(await answer.read())


async def chat(gateway: Gateway, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The message of the reply."""
    body = {"model": "tiny", "messages": list(messages), **more}
    status, reply = await send(gateway, "/v1/chat/completions", body)
    assert status == 200, reply
    message: dict[str, Any] = reply["choices"][0]["message"]
    return message


# Captured data


async def test_dropped_reasoning_makes_a_branch_that_trains_its_own_tokens(
    thinking: Gateway,
) -> None:
    said = [
        thinking.says("<think>Hm.</think>" + CALL % "fox"),
        thinking.says("<think>So.</think>A fox."),
        thinking.says("<think>Well.</think>Good."),
    ]
    messages: list[dict[str, Any]] = [HELLO]
    for follow in ("a fox", None, None):
        message = await chat(thinking, *messages, tools=TOOLS)
        messages.append(message)
        if follow is not None:
            call_id = message["tool_calls"][0]["id"]
            messages.append({"role": "tool", "tool_call_id": call_id, "content": follow})
        else:
            messages.append({"role": "user", "content": "Thanks"})
    rows = await thinking.rows("SELECT * FROM turns ORDER BY id")
    # A tool's result extends the ids; the next question drops the reasoning, and is a branch.
    assert [row["branch_reason"] for row in rows] == [None, None, "template_dropped_reasoning"]
    assert [row["parent_id"] for row in rows] == [None, rows[0]["id"], rows[1]["id"]]
    assert [row["trainable"] for row in rows] == [True] * 3
    assert [list(unpack_ids(row["sampled_ids"])) for row in rows] == said
    seen = [request["input_ids"] for request in thinking.engine.requests]
    assert seen[1][: len(seen[0]) + len(said[0])] == seen[0] + said[0]
    branch = rows[2]
    assert 0 < branch["shared_len"] < len(seen[1])
    assert seen[2][: branch["shared_len"]] == seen[1][: branch["shared_len"]]
    assert seen[2][branch["shared_len"]] != (seen[1] + said[1])[branch["shared_len"]]
    assert list(unpack_ids(branch["prompt_ids"])) == seen[2][branch["shared_len"] :]


@pytest.mark.parametrize("chunk", [1, 3, 64])
async def test_a_streamed_call_loses_no_token(thinking: Gateway, chunk: int) -> None:
    thinking.engine.chunk_tokens = chunk
    ids = thinking.says("<think>Hm.</think>Look: " + CALL % "fox" + CALL % "dog")
    body = {"model": "tiny", "messages": [HELLO], "tools": TOOLS, "stream": True}
    headers = {"authorization": f"Bearer {thinking.keys.agent}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{thinking.url}/v1/chat/completions", json=body) as answer,
    ):
        text = await answer.text()
    assert text.count('"name":"look"') == 2
    [row] = await thinking.rows("SELECT * FROM turns")
    assert list(unpack_ids(row["sampled_ids"])) == ids
    assert len(row["logprobs"]) == len(row["sampled_ids"])
    assert (row["trainable"], row["stream_mismatch"]) == (True, False)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("lose_logprob", "length_mismatch"), ("null_logprobs", "logprob_not_finite")],
)
async def test_a_missing_logprob_is_the_reason_on_the_turn(
    gateway: Gateway, fault: str, reason: str
) -> None:
    setattr(gateway.engine.faults, fault, True)
    gateway.says("dog")
    assert (await chat(gateway, HELLO))["content"] == "dog"
    [row] = await gateway.rows("SELECT trainable, untrainable_reason FROM turns")
    assert (row["trainable"], row["untrainable_reason"]) == (False, reason)


async def test_a_plain_client_makes_main_turns(gateway: Gateway) -> None:
    """No header, no id: a question and what follows are the main line all the same."""
    messages = [HELLO]
    for text in ("fox", "dog", "cat"):
        gateway.says(text)
        messages += [await chat(gateway, *messages), {"role": "user", "content": f"{text}?"}]
    rows = await gateway.rows("SELECT kind, session_id FROM turns ORDER BY id")
    assert [row["kind"] for row in rows] == ["main"] * 3
    assert len({row["session_id"] for row in rows}) == 1
    jobs = await gateway.rows("SELECT turn_id FROM judgements")
    assert len(jobs) == 2


# Sessions


async def test_two_users_with_the_same_first_words_are_told_apart(gateway: Gateway) -> None:
    for text in ("fox", "dog"):
        gateway.says(text)
        await chat(gateway, HELLO)
    told = [
        [HELLO, {"role": "assistant", "content": text}, {"role": "user", "content": "On"}]
        for text in ("fox", "dog")
    ]
    for messages in told:
        gateway.says("the")
        await chat(gateway, *messages)
    rows = await gateway.rows("SELECT id, parent_id, session_id FROM turns ORDER BY id")
    assert [row["parent_id"] for row in rows] == [None, None, rows[0]["id"], rows[1]["id"]]
    assert [row["session_id"] for row in rows[2:]] == [row["session_id"] for row in rows[:2]]
    assert len({row["session_id"] for row in rows}) == 2


async def test_two_users_whom_nothing_tells_apart_are_never_merged(gateway: Gateway) -> None:
    """Both hear the same: who goes on is not known, is marked, and is nobody's rollback."""
    on = [HELLO, {"role": "assistant", "content": "fox"}, {"role": "user", "content": "On"}]
    for messages in ([HELLO], [HELLO], on, on, on):
        gateway.says("fox")
        await chat(gateway, *messages)
    rows = await gateway.rows("SELECT * FROM turns ORDER BY id")
    sessions = await gateway.rows("SELECT id, ambiguous FROM sessions")
    # Each of the two lines is gone on with once; the third request belongs to neither.
    assert {row["parent_id"] for row in rows[2:4]} == {rows[0]["id"], rows[1]["id"]}
    last = rows[4]
    assert (last["parent_id"], last["branch_reason"]) == (None, "ambiguous")
    assert {row["id"]: row["ambiguous"] for row in sessions}[last["session_id"]] is True
    assert last["session_id"] not in {row["session_id"] for row in rows[:4]}
    states = await gateway.rows("SELECT turn_id FROM next_states")
    assert sorted(state["turn_id"] for state in states) == sorted(row["id"] for row in rows[:2])


async def test_nothing_of_another_tenant_is_found_by_any_name(thinking: Gateway) -> None:
    """Session names, minted ids of responses, items and calls: names in a tenant, no more."""
    stranger = thinking.keys.stranger
    thinking.says("<think>Hm.</think>" + CALL % "fox")
    named = {"x-session-id": "mine", "idempotency-key": "once"}
    body = {"model": "tiny", "messages": [HELLO], "tools": TOOLS}
    status, reply = await send(thinking, "/v1/chat/completions", body, headers=named)
    assert status == 200, reply
    thinking.says("<think>So.</think>A fox.")
    status, response = await send(thinking, "/v1/responses", {"model": "tiny", "input": "Hi"})
    assert status == 200, response
    [session] = await thinking.rows("SELECT id FROM sessions WHERE external_id = 'mine'")

    message = reply["choices"][0]["message"]
    call_id = message["tool_calls"][0]["id"]
    result = {"role": "tool", "tool_call_id": call_id, "content": "a fox"}
    thinking.says("dog")
    echoed = {"model": "tiny", "messages": [HELLO, message, result], "tools": TOOLS}
    status, _ = await send(
        thinking,
        "/v1/chat/completions",
        echoed,
        key=stranger,
        headers={**named, "x-stainless-retry-count": "1", "x-parent-session-id": "mine"},
    )
    assert status == 200
    for forged in (
        {"model": "tiny", "input": "On", "previous_response_id": response["id"]},
        {
            "model": "tiny",
            "input": [{"type": "item_reference", "id": response["output"][0]["id"]}, HELLO],
        },
    ):
        status, _ = await send(thinking, "/v1/responses", forged, key=stranger)
        assert status in (400, 404)
    for session_id in (session["id"], new_id()):
        path = f"/v1/sessions/{session_id}/end"
        status, ended = await send(thinking, path, {}, key=stranger)
        # The same word for what is another's and for what there is not.
        assert (status, ended["detail"]) == (404, "There is no such session.")
    rows = await thinking.rows("SELECT * FROM turns ORDER BY id")
    assert len(rows) == 3
    theirs = rows[2]
    assert theirs["tenant_id"] != rows[0]["tenant_id"]
    assert (theirs["parent_id"], theirs["retry_of"]) == (None, None)
    assert theirs["session_id"] not in {row["session_id"] for row in rows[:2]}
    assert await thinking.rows("SELECT 1 FROM next_states") == []
    [still] = await thinking.rows("SELECT status FROM sessions WHERE id = $1", session["id"])
    assert still["status"] == "open"
    [own] = await thinking.rows(
        "SELECT parent_session_id FROM sessions WHERE id = $1", theirs["session_id"]
    )
    assert own["parent_session_id"] is None


# Bad input

LONG = "x" * 201
MANY = [HELLO, {"role": "assistant", "content": "Hi"}] * 5_000 + [HELLO]
BLOCKS = [{"role": m["role"], "content": [{"type": "text", "text": "a"}]} for m in MANY]

CHAT = {"model": "tiny", "messages": [HELLO]}
MESSAGES = {"model": "tiny", "messages": [HELLO], "max_tokens": 5}
RESPONSES = {"model": "tiny", "input": "Hi"}
DIALECTS = (
    ("/v1/chat/completions", CHAT),
    ("/v1/messages", MESSAGES),
    ("/v1/responses", RESPONSES),
)


def result(id_: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": id_}


@pytest.fixture
async def wide(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway with the limits that it has by itself."""
    async with FakeSglang(model_path=tiny_model) as engine:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, tiny_model, engine.url, tmp_path)
        port = values["gateway"].port
        values["gateway"] = type(values["gateway"])(port=port)
        async with running_gateway(Settings(**values), keys) as running:
            yield Gateway(url=running.url, keys=keys, services=running.services, engine=engine)


async def refused(gateway: Gateway, status: int, words: str, *asked: Any) -> None:
    """Every request is answered with a status and words, and nothing else comes of it."""
    for path, body, headers in asked:
        found, said = await send(gateway, path, body, headers=headers)
        assert (found, words in said["error"]["message"]) == (status, True), (path, said)
    assert gateway.engine.requests == []
    assert await gateway.rows("SELECT 1 FROM sessions") == []


async def test_resolution_asks_the_store_as_often_whatever_the_length(
    wide: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    database = wide.services.database

    def counted(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counting(sql: str, *values: object, **options: Any) -> Any:
            asked.append(sql)
            return await ask(sql, *values, **options)

        return counting

    for name in ("fetch", "fetchrow", "fetchval", "look_up"):
        monkeypatch.setattr(database, name, counted(getattr(database, name)))
    unknown, known = [], []
    for exchanges in (1, 100):
        history = [*MANY[: 2 * exchanges], HELLO]
        for counts in (unknown, known):
            asked.clear()
            wide.says("dog")
            await chat(wide, *history)
            counts.append([sql for sql in asked if "turns" in sql])
            history += [{"role": "assistant", "content": "dog"}, HELLO]
    # By a few keys, and by all of them where these find nothing.
    assert unknown[0] == unknown[1]
    assert len(unknown[0]) == 2
    assert known[0] == known[1]
    assert len(known[0]) == 1


async def test_a_history_of_ten_thousand_messages_is_refused(wide: Gateway) -> None:
    await refused(
        wide,
        400,
        "4096",
        ("/v1/chat/completions", {**CHAT, "messages": MANY}, {}),
        ("/v1/messages", {**MESSAGES, "messages": BLOCKS}, {}),
        ("/v1/responses", {**RESPONSES, "input": MANY}, {}),
    )


async def test_a_body_of_ten_megabytes_is_refused(wide: Gateway) -> None:
    big = "a" * 10_000_000
    await refused(
        wide,
        413,
        "8388608",
        ("/v1/chat/completions", {**CHAT, "messages": [{**HELLO, "content": big}]}, {}),
        ("/v1/messages", {**MESSAGES, "system": big}, {}),
        ("/v1/responses", {**RESPONSES, "instructions": big}, {}),
        ("/v1/completions", {"model": "tiny", "prompt": big}, {}),
    )


async def test_a_name_of_more_than_two_hundred_bytes_is_refused(wide: Gateway) -> None:
    names = (
        {"x-session-id": LONG},
        {"x-session-id": "a", "x-parent-session-id": LONG},
        {"idempotency-key": LONG},
        {"x-session-id": "\u00e9" * 150},
    )
    await refused(wide, 400, "200 bytes", *((*one, name) for one in DIALECTS for name in names))


async def test_a_nul_in_a_header_is_no_server_error(wide: Gateway) -> None:
    """The server refuses bytes that no header may have before anything reads them."""
    host, port = wide.url.removeprefix("http://").split(":")
    for path, _ in DIALECTS:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
            f"authorization: Bearer {wide.keys.agent}\r\nx-session-id: a\0b\r\n\r\n{{}}".encode()
        )
        status = await reader.readline()
        writer.close()
        assert status.split()[1] == b"400", path


async def test_a_nul_in_a_body_is_refused_or_stored(wide: Gateway) -> None:
    stored = 0
    for path, body in (
        ("/v1/chat/completions", {**CHAT, "user": "a\0b"}),
        ("/v1/messages", {**MESSAGES, "metadata": {"user_id": "user_a\0b_session_c"}}),
        ("/v1/responses", {**RESPONSES, "prompt_cache_key": "a\0b", "user": "\0"}),
        ("/v1/responses", {**RESPONSES, "previous_response_id": "resp_\0"}),
        ("/v1/chat/completions", {**CHAT, "messages": [HELLO, result("\0")]}),
        ("/v1/chat/completions", {**CHAT, "messages": [HELLO, result(LONG)]}),
    ):
        status, said = await send(wide, path, body)
        assert status in (200, 400), (path, said)
        stored += status == 200
        assert len(await wide.rows("SELECT 1 FROM turns")) == stored, path
    assert stored > 0
