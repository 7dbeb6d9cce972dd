"""Limits per key, request ids, and clients that leave before anything was sampled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from gateway.config import KeyLimits, LimitSettings, Settings
from tests.fakes import FakeSglang, Turnstile
from tests.fixtures_gateway import Gateway
from tests.running import gateway_values, make_keys, running_gateway

ASK: list[Any] = [{"role": "user", "content": "The quick brown fox?"}]
BODY = {"model": "tiny", "messages": ASK}


@pytest.fixture
async def limited(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    """Keys of the name `agent` have two requests a minute, one at a time."""
    async with FakeSglang(model_path=tiny_model) as engine:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, tiny_model, engine.url, tmp_path)
        own = KeyLimits(requests_per_minute=2, tokens_per_minute=10_000, concurrent_requests=1)
        values["limits"] = LimitSettings(keys={"one/agent": own})
        async with running_gateway(Settings(**values), keys) as running:
            # What a key has left does not come back while a test is at it.
            running.services.limiter._clock = lambda: 0.0
            yield Gateway(url=running.url, keys=keys, services=running.services, engine=engine)


async def test_a_key_is_held_to_its_limit_and_others_are_not(limited: Gateway) -> None:
    remaining = []
    async with limited.client() as client:
        for _ in range(2):
            limited.says("fox")
            raw = await client.chat.completions.with_raw_response.create(model="tiny", messages=ASK)
            remaining.append(raw.headers["x-ratelimit-remaining-requests"])
            used = raw.parse().usage
        assert used is not None
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="tiny", messages=ASK)
    assert remaining == ["1", "0"]
    headers = caught.value.response.headers
    # Two a minute: the next one is due after half of it.
    assert headers["retry-after"] == "30"
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-tokens"] == str(10_000 - 2 * used.total_tokens)
    assert caught.value.code == "rate_limit_exceeded"
    limited.says("dog")
    async with limited.client(limited.keys.stranger) as client:
        raw = await client.chat.completions.with_raw_response.create(model="tiny", messages=ASK)
    assert not [name for name in raw.headers if name.startswith("x-ratelimit")]


async def test_one_at_a_time(limited: Gateway) -> None:
    limited.engine.turnstile = Turnstile(1)
    limited.says("fox " * 50)
    headers = {"authorization": f"Bearer {limited.keys.agent}"}
    url = f"{limited.url}/v1/chat/completions"
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(url, json={**BODY, "stream": True}) as first:
            await first.content.readline()
            async with http.post(url, json=BODY) as second:
                assert second.status == 429
                assert second.headers["retry-after"] == "1"
        # The place is free again once the first has left.
        async with asyncio.timeout(120):
            while limited.services.limiter.of(await _principal(limited)).running:
                await asyncio.sleep(0.02)
        limited.engine.turnstile = None
        limited.says("dog")
        async with http.post(url, json=BODY) as third:
            assert third.status == 200


async def _principal(gateway: Gateway) -> Any:
    return await gateway.services.keys.principal(gateway.keys.agent)


@pytest.mark.parametrize(
    ("given", "back"),
    [("req-7.a:b_C", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("", False)],
)
async def test_a_plain_request_id_comes_back(gateway: Gateway, given: str, back: bool) -> None:
    gateway.says("fox")
    headers = {"authorization": f"Bearer {gateway.keys.agent}", "x-request-id": given}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.url}/v1/chat/completions", json=BODY) as answer,
    ):
        named = answer.headers["x-request-id"]
    assert (named == given) is back
    assert named


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_noticed(gateway: Gateway, stream: bool) -> None:
    """Before the engine has answered at all, and while it samples."""
    gateway.engine.faults.hang = not stream
    gateway.engine.chunk_delay_s = 0.05
    gateway.says("fox " * 100)
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        request = asyncio.create_task(
            http.post(f"{gateway.url}/v1/chat/completions", json={**BODY, "stream": stream})
        )
        async with asyncio.timeout(120):
            while not gateway.engine.requests:
                await asyncio.sleep(0.005)
        if stream:
            (await request).close()
        else:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        async with asyncio.timeout(120):
            while not gateway.engine.aborted:
                await asyncio.sleep(0.005)
    assert gateway.engine.aborted == [gateway.engine.requests[0]["rid"]]
