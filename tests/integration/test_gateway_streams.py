"""What goes over the wire in every dialect, byte by byte and in time with the engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from gateway.config import ModelSettings
from gateway.pipeline import source
from gateway.records import Reply
from tests.dialects import DIALECTS, Dialect, each_dialect, events_of
from tests.fakes import Turnstile
from tests.fixtures_gateway import Gateway

COMMENT = b": keep-alive\n"
#: Characters of two to four bytes, which a byte-level vocabulary without them samples in parts.
TEXT = "Zürich 日本 🙂 fox"


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(gateway.url, headers=headers) as session:
        yield session


async def ask(
    http: aiohttp.ClientSession, dialect: Dialect, **more: Any
) -> tuple[int, list[dict[str, Any]]]:
    """(status, the events of a stream or the one object of a reply)."""
    async with http.post(dialect.path, json=dialect.body(**more)) as answer:
        text = await answer.text()
    return answer.status, events_of(text) if more.get("stream") else [json.loads(text)]


async def until(answer: aiohttp.ClientResponse, wanted: bytes) -> bytes:
    """All lines up to the next one that is, or has in it, what is wanted."""
    lines = b""
    while line := await answer.content.readline():
        lines += line
        if wanted in line:
            return lines
    raise AssertionError(f"{wanted!r} never came: {lines!r}")


def told(data: bytes) -> list[dict[str, Any]]:
    """Events among the lines; what is no event is a comment or ends one."""
    lines = data.splitlines(keepends=True)
    others = {line for line in lines if not line.startswith((b"data: ", b"event: "))}
    assert others <= {b"\n", COMMENT}
    return events_of(data.decode())


@each_dialect
async def test_tokens_are_shown_as_they_are_sampled_and_silence_is_filled(
    http: aiohttp.ClientSession, gateway: Gateway, dialect: Dialect
) -> None:
    """The engine says nothing, then one word, then nothing again: the client hears all of it."""
    gateway.engine.turnstile = gate = Turnstile(0)
    ids = gateway.says("fox dog fox")
    first = gateway.services.tokenizer.decode(ids[:1])
    assert first.strip()
    async with http.post(dialect.path, json=dialect.body(stream=True)) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        assert told(await until(answer, COMMENT)) == []
        gate.release()
        shown = told(await until(answer, json.dumps(first).encode()))
        assert dialect.text(shown) == first
        shown += told(await until(answer, COMMENT))
        assert (dialect.text(shown), dialect.ends(shown)) == (first, [])
        gateway.engine.turnstile = None
        for _ in ids:
            gate.release()
        shown += told(await answer.content.read())
    assert dialect.text(shown) == "fox dog fox"
    assert len(dialect.ends(shown)) == 1


@each_dialect
async def test_no_event_holds_half_a_character_or_half_a_stop(
    http: aiohttp.ClientSession, gateway: Gateway, dialect: Dialect
) -> None:
    written = TEXT if dialect.stop is None else f"{TEXT} <END> and more"
    shown = TEXT if dialect.stop is None else f"{TEXT} "
    more = {} if dialect.stop is None else {dialect.stop: ["<END>"]}
    for stream in (True, False):
        ids = gateway.says(written)
        tokenizer = gateway.services.tokenizer
        assert any("\ufffd" in tokenizer.decode([id_]) for id_ in ids)
        status, events = await ask(http, dialect, stream=stream, **more)
        assert (status, dialect.text(events), len(dialect.ends(events))) == (200, shown, 1)
        for event in events:
            assert "\ufffd" not in json.dumps(event, ensure_ascii=False)
            assert "<" not in dialect.text([event])
    turns = await gateway.rows("SELECT reply, finish_reason, stream_mismatch FROM turns")
    assert [turn["reply"]["content"] for turn in turns] == [shown] * 2
    assert {(turn["finish_reason"], turn["stream_mismatch"]) for turn in turns} == {("stop", False)}


#: Fields of other servers, of other protocols and of none, with values of every kind.
UNKNOWN: dict[str, Any] = {
    "x_unknown": {"a": [1, None, {"b": 2.5}]},
    "min_tokens": "many",
    "ignore_eos": True,
    "guided_json": {"type": "object"},
    "bad_words": 7,
    "input_ids": [10**9],
    "lora_path": "/etc/passwd",
    "rid": "mine",
    "service_tier": ["x"],
    "prediction": None,
    "web_search_options": {},
    "": "",
}


@each_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_fields_that_are_not_known_change_nothing(
    http: aiohttp.ClientSession, gateway: Gateway, dialect: Dialect, stream: bool
) -> None:
    body = dialect.body(stream=stream)
    messages = body.get(dialect.param)
    if isinstance(messages, list):
        more = {**UNKNOWN, dialect.param: [{**message, **UNKNOWN} for message in messages]}
    else:
        more = UNKNOWN
    for asked in ({}, more):
        gateway.says("fox")
        status, events = await ask(http, dialect, stream=stream, **asked)
        assert (status, dialect.text(events)) == (200, "fox"), events
    plain, unknown = gateway.engine.requests
    assert plain.pop("rid") != unknown.pop("rid")
    assert unknown == plain


@each_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_captured_always_and_shown_if_asked_for(
    http: aiohttp.ClientSession, gateway: Gateway, dialect: Dialect, stream: bool
) -> None:
    ids = gateway.says("fox dog")
    status, events = await ask(http, dialect, stream=stream)
    assert status == 200
    assert set(logprobs(events)) <= {None, ()}
    assert gateway.engine.requests[-1]["return_logprob"] is True
    [turn] = await gateway.rows("SELECT logprobs FROM turns")
    assert len(turn["logprobs"]) == 4 * len(ids)


def logprobs(value: Any) -> list[Any]:
    """Whatever stands under that name, anywhere inside."""
    if isinstance(value, list):
        return [found for item in value for found in logprobs(item)]
    if not isinstance(value, dict):
        return []
    own = [tuple(v) if isinstance(v, list) else v for k, v in value.items() if k == "logprobs"]
    return own + [found for item in value.values() for found in logprobs(item)]


async def test_a_reply_that_reads_otherwise_as_a_whole_is_counted_and_stored(
    http: aiohttp.ClientSession, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client keeps what was streamed, and what is stored is what all the ids say."""
    chat = DIALECTS[0]
    gateway.says("fox")
    assert (await ask(http, chat))[0] == 200
    monkeypatch.setattr(source, "parse_reply", lambda *_, **__: Reply(text="cat"))
    gateway.says("dog")
    _, events = await ask(http, chat, stream=True)
    assert (chat.text(events), chat.ends(events)) == ("dog", ["stop"])
    turns = await gateway.rows("SELECT reply, stream_mismatch FROM turns ORDER BY id")
    found = [(turn["reply"]["content"], turn["stream_mismatch"]) for turn in turns]
    assert found == [("fox", False), ("cat", True)]
    assert await metric(gateway, "nextstate_gateway_stream_mismatches_total") == 1


async def test_who_leaves_is_counted_as_such(http: aiohttp.ClientSession, gateway: Gateway) -> None:
    """Nobody is there to see this status, so that operators are told of it."""
    with capture_logs() as logged:
        for dialect in DIALECTS:
            gateway.engine.turnstile = Turnstile(1)
            ids = gateway.says("fox dog fox")
            first = gateway.services.tokenizer.decode(ids[:1])
            async with http.post(dialect.path, json=dialect.body(stream=True)) as answer:
                await until(answer, json.dumps(first).encode())
        await gateway.until("SELECT 1 FROM turns HAVING count(*) = 4")
        async with asyncio.timeout(60):
            while await metric(gateway, "nextstate_gateway_requests_total", status="499") < 4:
                await asyncio.sleep(0.02)
    left = [line["status"] for line in logged if line["event"] == "client_left"]
    assert left == [499] * 4
    turns = await gateway.rows("SELECT dialect, finish_reason, trainable FROM turns")
    assert {turn["dialect"] for turn in turns} == {dialect.name for dialect in DIALECTS}
    assert {(turn["finish_reason"], turn["trainable"]) for turn in turns} == {("abort", False)}


async def metric(gateway: Gateway, name: str, **labels: str) -> float:
    """The sum of the samples of that name with those labels."""
    headers = {"authorization": f"Bearer {gateway.keys.admin}"}
    async with (
        aiohttp.ClientSession(headers=headers) as operator,
        operator.get(f"{gateway.url}/metrics") as answer,
    ):
        lines = (await answer.text()).splitlines()
    found = [
        line
        for line in lines
        if line.startswith(name) and all(f'{k}="{v}"' in line for k, v in labels.items())
    ]
    return sum(float(line.rpartition(" ")[2]) for line in found)


NAMED = ("gpt-5.2", "claude-opus-4-7", "org/model:8b")


@pytest.fixture
async def named(gateway: Gateway) -> Gateway:
    """The policy under names of other models, too."""
    settings = gateway.services.settings
    gateway.services.settings = settings.model_copy(
        update={
            "model": ModelSettings.model_validate(settings.model.model_dump() | {"aliases": NAMED})
        }
    )
    return gateway


async def test_an_alias_is_the_policy_and_another_name_is_not(
    named: Gateway, http: aiohttp.ClientSession
) -> None:
    for dialect in DIALECTS:
        for name in NAMED:
            named.says("fox")
            status, [reply] = await ask(http, dialect, model=name)
            assert (status, reply["model"], dialect.text([reply])) == (200, name, "fox")
        assert (await ask(http, dialect, model="gpt-5"))[0] == 404
        assert (await ask(http, dialect, model="*"))[0] == 404
    turns = await named.rows("SELECT DISTINCT lineage_id, model FROM turns")
    assert {turn["model"] for turn in turns} == set(NAMED)
    assert {turn["lineage_id"] for turn in turns} == {named.keys.lineage_id}
    async with http.get("/v1/models") as answer:
        listed = [card["id"] for card in (await answer.json())["data"]]
    assert listed == ["tiny", *NAMED]
    for name, status in ((NAMED[2], 200), ("gpt-5", 404), ("*", 404)):
        async with http.get(f"/v1/models/{name}") as answer:
            assert answer.status == status
            if status == 200:
                assert (await answer.json())["id"] == name


async def test_clients_of_the_messages_api_get_their_own_form_of_models(named: Gateway) -> None:
    headers = {"x-api-key": named.keys.agent, "anthropic-version": "2023-06-01"}
    async with aiohttp.ClientSession(named.url, headers=headers) as http:

        async def read(path: str, status: int = 200, **more: Any) -> Any:
            async with http.get(f"/v1/models{path}", **more) as answer:
                found = await answer.json()
                assert answer.status == status, found
                if status != 200:
                    assert answer.headers["request-id"] == found["request_id"]
                    assert (found["type"], found["error"].keys()) == ("error", {"type", "message"})
                return found

        listed = await read("")
        assert [card["id"] for card in listed["data"]] == ["tiny", *NAMED]
        assert (listed["first_id"], listed["last_id"]) == ("tiny", NAMED[-1])
        assert listed["has_more"] is False
        page = await read("?limit=1&after_id=tiny")
        assert ([card["id"] for card in page["data"]], page["has_more"]) == ([NAMED[0]], True)
        card = await read(f"/{NAMED[2]}")
        assert card == listed["data"][3]
        assert (card["type"], card["display_name"]) == ("model", NAMED[2])
        gone = await read("/gpt-5", 404)
        assert gone["error"]["type"] == "not_found_error"
        assert gone["error"]["message"].startswith("model: ")
        unknown = await read("", 401, headers={"x-api-key": "wrong"})
        assert unknown["error"]["type"] == "authentication_error"
        wrong = await read("?limit=0", 400)
        assert wrong["error"]["type"] == "invalid_request_error"
        many = "&".join(f"a{number}=1" for number in range(101))
        assert (await read(f"?{many}", 400))["error"]["type"] == "invalid_request_error"
        async with http.post("/v1/models", json={}) as answer:
            assert answer.status == 405
            assert (await answer.json())["error"]["type"] == "invalid_request_error"
        async with http.get("/v1/nothing") as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["type"] == "not_found_error"
