"""Every error in every dialect: its status, its form, its headers, and what is stored of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config import EngineSettings, KeyLimits, LimitSettings, Settings
from tests.dialects import DIALECTS, Dialect, each_dialect
from tests.fakes import FakeSglang, running
from tests.fixtures_gateway import Gateway, fake_gateway
from tests.fuzz.wire import Answer, send
from tests.running import gateway_values, make_keys, running_gateway
from tests.tiny_model import CONTEXT, make_model

LONG = "a b " * 2_500
RATES = [
    f"{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")
]
#: Tokens that may have come before the client saw the first one.
SEEN = 3

_OPENAI_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    502: "server_error",
    503: "server_error",
}


@dataclass(kw_only=True)
class Pair(Gateway):
    """A gateway over two engines."""

    other: FakeSglang

    @property
    def engines(self) -> tuple[FakeSglang, FakeSglang]:
        return self.engine, self.other

    @property
    def attempts(self) -> int:
        return sum(len(engine.requests) for engine in self.engines)

    async def ask(
        self,
        dialect: Dialect,
        body: bytes | Mapping[str, Any],
        *,
        key: str | None = None,
        method: str = "POST",
        missing: int = 0,
        encoding: str | None = None,
    ) -> Answer:
        """The answer to a request that calls itself `req-7`, `missing` bytes of it held back."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [
            f"{method} {dialect.path} HTTP/1.1",
            "host: test",
            "connection: close",
            "x-request-id: req-7",
            f"authorization: Bearer {self.keys.agent if key is None else key}",
            f"content-length: {len(raw) + missing}",
            *([] if encoding is None else [f"content-encoding: {encoding}"]),
        ]
        message = "\r\n".join([*lines, "", ""]).encode() + raw
        return await send(self.services.settings.gateway.port, message)


@pytest.fixture
async def two(
    request: pytest.FixtureRequest, database_url: str, tiny_model: Path, tmp_path: Path
) -> AsyncIterator[Pair]:
    """The stranger's key may ask once a minute; the parameter is the engines' longest silence."""
    fakes = FakeSglang(model_path=tiny_model), FakeSglang(model_path=tiny_model)
    async with running(*fakes) as (engine, other):
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, tiny_model, engine.url, tmp_path)
        values["gateway"] = values["gateway"].model_copy(
            update={"body_timeout_s": 0.5, "keepalive_comment_s": 15}
        )
        silence_s = getattr(request, "param", 30.0)
        values["engines"] = tuple(
            EngineSettings(name=name, url=fake.url, idle_timeout_s=silence_s, retries=2)
            for name, fake in (("engine", engine), ("other", other))
        )
        own = KeyLimits(requests_per_minute=1, tokens_per_minute=100_000)
        values["limits"] = LimitSettings(keys={"other/agent": own})
        async with running_gateway(Settings(**values), keys) as served:
            services = served.services
            # What a key has left does not come back while a test is at it.
            services.limiter._clock = lambda: 0.0
            yield Pair(url=served.url, keys=keys, services=services, engine=engine, other=other)


def check(
    dialect: Dialect,
    answer: Answer,
    status: int,
    *,
    code: str | None = None,
    param: str | None = None,
) -> str:
    """The message of an error that is in the dialect's form and carries the request's ids."""
    assert answer.status == status, answer
    assert answer.kind == "application/json"
    assert answer.headers["x-request-id"] == "req-7"
    told = answer.json()
    error = told["error"]
    if dialect.is_anthropic:
        assert told["type"] == "error"
        assert error["type"] == dialect.kinds[status]
        assert told["request_id"] == answer.headers["request-id"]
    else:
        assert error["type"] == _OPENAI_KINDS[status]
        assert error["code"] == code
        assert error["param"] == param
        assert answer.headers["request-id"].startswith("req_")
    assert error["message"]
    return str(error["message"])


async def test_a_body_that_is_no_request(two: Pair) -> None:
    for dialect in DIALECTS:
        check(dialect, await two.ask(dialect, b"{"), 400, code="invalid_json")
        spoiled = dialect.body() | {dialect.param: 7}
        answer = await two.ask(dialect, spoiled)
        check(dialect, answer, 400, code="invalid_type", param=dialect.param)
        lacking = {name: value for name, value in dialect.body().items() if name != dialect.param}
        answer = await two.ask(dialect, lacking)
        said = check(dialect, answer, 400, code="missing_required_parameter", param=dialect.param)
        assert dialect.param in said
        assert two.attempts == 0


async def test_a_part_that_the_model_does_not_take(two: Pair) -> None:
    for dialect in DIALECTS:
        for kind, body in dialect.parts.items():
            answer = await two.ask(dialect, {"model": "tiny", **body})
            param = f"{dialect.param}[0].content[0].type"
            said = check(dialect, answer, 400, code="unsupported_content", param=param)
            assert kind in said
        if not dialect.parts:
            # No parts here: what it has instead is ids that the model does not.
            answer = await two.ask(dialect, dialect.body() | {"prompt": [1, 10**6]})
            check(dialect, answer, 400, code="invalid_value", param="prompt")
    assert two.attempts == 0


async def test_a_context_that_is_too_long_is_told_with_both_numbers(two: Pair) -> None:
    for dialect in DIALECTS:
        told = LONG
        if dialect.name != "openai_completions":
            told = f"<|im_start|>user\n{LONG}<|im_end|>\n<|im_start|>assistant\n"
        length = len(two.services.tokenizer.encode(told))
        answer = await two.ask(dialect, dialect.body(LONG))
        said = check(dialect, answer, 400, code="context_length_exceeded", param=dialect.param)
        numbers = [int(number) for number in re.findall(r"\d+", said)]
        assert {length, CONTEXT} <= set(numbers)


async def test_who_may_not_ask(two: Pair) -> None:
    for dialect in DIALECTS:
        answer = await two.ask(dialect, dialect.body(), key="sk-wrong")
        check(dialect, answer, 401, code="invalid_api_key")
        answer = await two.ask(dialect, dialect.body(), key="")
        check(dialect, answer, 401, code="missing_api_key")
        answer = await two.ask(dialect, dialect.body(), key=two.keys.admin)
        check(dialect, answer, 403, code="permission_denied")


async def test_what_is_not_there(two: Pair) -> None:
    for dialect in DIALECTS:
        answer = await two.ask(dialect, dialect.body(model="gpt-4"))
        check(dialect, answer, 404, code="model_not_found", param="model")
        elsewhere = replace(dialect, path=f"{dialect.path}/none/at/all")
        check(dialect, await two.ask(elsewhere, b""), 404, code="unknown_url")
        answer = await two.ask(dialect, b"", method="PUT")
        check(dialect, answer, 405, code="method_not_supported")
        assert answer.headers["allow"] == "POST"


async def test_a_body_that_does_not_come_or_does_not_end(two: Pair) -> None:
    for dialect in DIALECTS:
        answer = await two.ask(dialect, dialect.body(), missing=5)
        check(dialect, answer, 408, code="request_timeout")
        assert answer.headers["connection"] == "close"
        answer = await two.ask(dialect, dialect.body("x" * 300_000))
        assert "200000" in check(dialect, answer, 413, code="request_too_large")


async def test_a_body_that_is_compressed(two: Pair) -> None:
    for dialect in DIALECTS:
        plain = json.dumps(dialect.body()).encode()
        answer = await two.ask(dialect, gzip.compress(plain), encoding="gzip")
        assert answer.status == 200, answer
        large = json.dumps(dialect.body("x" * 300_000)).encode()
        answer = await two.ask(dialect, gzip.compress(large), encoding="gzip")
        assert "200000" in check(dialect, answer, 413, code="request_too_large")
        answer = await two.ask(dialect, plain, encoding="zstd")
        check(dialect, answer, 415, code="unsupported_content_encoding")
        answer = await two.ask(dialect, plain, encoding="gzip")
        check(dialect, answer, 400, code="invalid_encoding")


@each_dialect
async def test_a_key_that_has_had_its_share(two: Pair, dialect: Dialect) -> None:
    # A short reply: what it takes from the bucket is back within a second, told in milliseconds.
    body = dialect.body(**{dialect.limit: 64})
    assert (await two.ask(dialect, body, key=two.keys.stranger)).status == 200
    answer = await two.ask(dialect, body, key=two.keys.stranger)
    check(dialect, answer, 429, code="rate_limit_exceeded")
    [turn] = await two.rows("SELECT prompt_len + completion_len AS used FROM turns")
    told = {name: answer.headers[f"x-ratelimit-{name}"] for name in RATES}
    # A bucket of 100,000 fills by 5,000 in 3 s.
    left, fills_s = 100_000 - turn["used"], turn["used"] / 100_000 * 60
    assert answer.headers["retry-after"] == "60"
    assert told == {
        "limit-requests": "1",
        "remaining-requests": "0",
        "reset-requests": "1m0s",
        "limit-tokens": "100000",
        "remaining-tokens": str(left),
        "reset-tokens": f"{round(fills_s * 1000)}ms",
    }


FULL = (503, "The request queue is full.")
DOWN = (500, "Internal error.")
REFUSED = (400, "No.")


@each_dialect
@pytest.mark.parametrize(
    ("fault", "outcome", "attempts"),
    [
        (FULL, (503, 529, "engine_overloaded"), (2, 2)),
        (DOWN, (503, 503, "engine_unavailable"), (2, 3)),
        (REFUSED, (502, 502, "engine_rejected"), (1, 1)),
    ],
)
async def test_engines_that_fail_are_tried_a_few_times(
    two: Pair,
    dialect: Dialect,
    fault: tuple[int, str],
    outcome: tuple[int, int, str],
    attempts: tuple[int, int],
) -> None:
    for engine in two.engines:
        engine.faults.refuse = fault
    status, anthropic, code = outcome
    answer = await two.ask(dialect, dialect.body(stream=True))
    check(dialect, answer, anthropic if dialect.is_anthropic else status, code=code)
    assert ("retry-after" in answer.headers) is (status == 503)
    least, most = attempts
    assert least <= two.attempts <= most
    if least > 1:
        assert all(engine.requests for engine in two.engines)
    assert await two.rows("SELECT 1 FROM turns") == []


@each_dialect
@pytest.mark.parametrize("two", [0.3], indirect=True)
async def test_engines_that_never_say_anything(two: Pair, dialect: Dialect) -> None:
    for engine in two.engines:
        engine.faults.hang = True
    answer = await two.ask(dialect, dialect.body())
    check(dialect, answer, 504 if dialect.is_anthropic else 502, code="engine_timeout")
    assert [len(engine.requests) for engine in two.engines] == [1, 1]
    assert await two.rows("SELECT 1 FROM turns") == []


@each_dialect
async def test_another_engine_serves_unseen(two: Pair, dialect: Dialect) -> None:
    once = deque([DOWN])
    for engine in two.engines:
        engine.faults.refuse_once = once
    answer = await two.ask(dialect, dialect.body())
    assert (answer.status, two.attempts) == (200, 2)
    [turn] = await two.rows("SELECT trainable FROM turns")
    assert turn["trainable"] is True


@each_dialect
async def test_nothing_is_tried_again_after_the_first_byte(two: Pair, dialect: Dialect) -> None:
    for engine in two.engines:
        engine.faults.die_after = 1
        engine.replies.append([5, 6, 7, 8, 9])
    answer = await two.ask(dialect, dialect.body(stream=True))
    assert (answer.status, two.attempts) == (200, 1)
    events = [json.loads(line[6:]) for line in answer.body.splitlines() if line[:7] == b"data: {"]
    last = events[-1]
    if dialect.name == "openai_responses":
        assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
        assert last["response"]["error"]["message"]
    else:
        assert last["error"]["type"] == ("api_error" if dialect.is_anthropic else "server_error")
    row = await two.until("SELECT * FROM turns")
    assert (row["finish_reason"], row["trainable"]) == ("abort", False)


@each_dialect
async def test_who_leaves_has_an_aborted_turn(two: Pair, dialect: Dialect) -> None:
    """A token takes 50 ms: whoever is aborted within a second has had 20 more at most."""
    for engine in two.engines:
        engine.chunk_delay_s = 0.05
        engine.replies.append([5] * 60)
    headers = {"authorization": f"Bearer {two.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        url, body = f"{two.url}{dialect.path}", dialect.body(stream=True)
        async with http.post(url, json=body) as answer:
            async for line in answer.content:
                if b"delta" in line or b'"text"' in line:
                    break
    row = await two.until("SELECT * FROM turns")
    assert (row["finish_reason"], row["trainable"]) == ("abort", False)
    assert row["untrainable_reason"] == "aborted"
    assert 1 <= row["completion_len"] <= 21 + SEEN
    [asked] = [body for engine in two.engines for body in engine.requests]
    async with asyncio.timeout(120):
        while not (told := [rid for engine in two.engines for rid in engine.aborted]):
            await asyncio.sleep(0.01)
    assert told == [asked["rid"]]


def ids_beyond(edge: int) -> list[tuple[str, str, Any, str]]:
    """(dialect, field, value, code of the answer) for a vocabulary that ends at `edge`."""
    return [
        ("openai_completions", "prompt", [1, edge], "invalid_value"),
        ("openai_completions", "prompt", [[-1]], "invalid_value"),
        ("openai_completions", "prompt", [2**64], "invalid_value"),
        ("openai_chat", "logit_bias", {str(edge): 1}, "invalid_value"),
        ("openai_completions", "logit_bias", {"99999999999": 1}, "invalid_value"),
        ("openai_completions", "logit_bias", {"-1": 1}, "invalid_value"),
        ("openai_chat", "stop_token_ids", [edge], "invalid_value"),
        ("openai_completions", "stop_token_ids", [-1], "invalid_value"),
        ("openai_chat", "stop_token_ids", [2**70], "invalid_value"),
        # In the vocabulary, but an end of its own: it is not ignored, nor can it be served.
        ("openai_chat", "stop_token_ids", [5], "unsupported_parameter"),
    ]


async def test_no_id_outside_the_vocabulary_reaches_an_engine(two: Pair) -> None:
    by_name = {dialect.name: dialect for dialect in DIALECTS}
    facts = two.services.tokenizer.facts
    for name, param, value, code in ids_beyond(facts.vocab_size):
        dialect = by_name[name]
        answer = await two.ask(dialect, dialect.body() | {param: value})
        check(dialect, answer, 400, code=code, param=param)
    assert two.attempts == 0
    chat = by_name["openai_chat"]
    own = list(facts.stop_token_ids)
    # What other servers call ids means nothing here, and is ignored.
    more = {"stop_token_ids": own, "bad_words_ids": [[10**9]], "input_ids": [10**9]}
    assert (await two.ask(chat, chat.body() | more)).status == 200
    [request] = [request for engine in two.engines for request in engine.requests]
    assert max(request["input_ids"]) < facts.vocab_size
    assert request["sampling_params"]["stop_token_ids"] == own


async def test_no_word_names_an_id_that_the_model_does_not_have(
    database_url: str, tmp_path: Path
) -> None:
    """Some models' tokenizers know words for which the embedding has no row."""
    model = make_model(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["vocab_size"] -= 1
    (model / "config.json").write_text(json.dumps(config))
    async with fake_gateway(database_url, model, tmp_path) as served:
        word = served.services.tokenizer.decode([config["vocab_size"]])
        headers = {"authorization": f"Bearer {served.keys.agent}"}
        async with aiohttp.ClientSession(served.url, headers=headers) as http:
            for dialect in DIALECTS:
                said = {}
                for text in (f"The {word} fox", "The fox"):
                    async with http.post(dialect.path, json=dialect.body(text)) as answer:
                        said[text] = answer.status, await answer.text()
                (refused, why), (status, _) = said.values()
                assert (refused, status) == (400, 200), said
                assert str(config["vocab_size"]) in json.loads(why)["error"]["message"]
        assert not served.engine.crashed
        assert len(served.engine.requests) == len(DIALECTS)
