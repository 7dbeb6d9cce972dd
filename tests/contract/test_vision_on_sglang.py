"""Images over the real engine: a small Qwen2-VL looks at what a client shows the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from gateway.config import EngineSettings, ModelSettings, Settings
from gateway.engine.sglang import SglangEngine
from gateway.errors import EngineRejected
from gateway.records import PolicyKind, PolicyRef
from gateway.store.packing import unpack_ids
from tests.fixtures_engine import running_sglang
from tests.media import data_url, png, text_of
from tests.running import Gateway, gateway_values, make_keys, running_gateway
from tests.vision_model import make_vision_model, sight

pytestmark = pytest.mark.sglang

BASE = PolicyRef(lineage_id=UUID(int=1), version=0, kind=PolicyKind.BASE)
#: 16 by 16 pixels are 4 tokens in the place of one mark.
MORE = 3
RED, BLUE = png(255, side=16), png(0, 0, 255, side=16)

#: A model of random weights ends its reply where nothing else may follow.
SAYS_RED: Any = {
    "type": "json_schema",
    "json_schema": {"name": "color", "schema": {"enum": ["red"]}},
}


@pytest.fixture(scope="module")
async def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("vision") / "model")


@pytest.fixture(scope="module")
async def engine_url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    log = tmp_path_factory.mktemp("vision") / "server.log"
    sees = await asyncio.to_thread(sight)
    async with running_sglang(model, log, max_total_tokens=4096, sees=sees) as process:
        yield process.url


@pytest.fixture
async def gateway(
    database_url: str, model: Path, engine_url: str, tmp_path: Path
) -> AsyncIterator[Gateway]:
    keys = await make_keys(database_url, "tiny")
    values = gateway_values(database_url, model, engine_url, tmp_path)
    values["model"] = ModelSettings(path=model, name="tiny")
    values["engines"] = (EngineSettings(name="engine", url=engine_url, idle_timeout_s=300),)
    async with running_gateway(Settings(**values), keys) as running:
        yield running


def asked(picture: bytes) -> dict[str, Any]:
    shown = {"type": "image_url", "image_url": {"url": data_url(picture)}}
    return {"role": "user", "content": [{"type": "text", "text": "What? "}, shown]}


async def test_the_model_sees_what_the_client_shows(gateway: Gateway, engine_url: str) -> None:
    said: dict[bytes, Any] = {}
    async with gateway.client() as client:
        for picture in (RED, BLUE):
            said[picture] = await client.chat.completions.create(
                model="tiny", messages=[asked(picture)], temperature=0, max_tokens=6
            )
    red, blue = await gateway.rows("SELECT * FROM turns ORDER BY id")
    ids = list(unpack_ids(red["prompt_ids"]))
    assert ids == list(unpack_ids(blue["prompt_ids"]))
    for picture, turn in ((RED, red), (BLUE, blue)):
        usage = said[picture].usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(ids) + MORE, 6)
        # What the engine says itself, asked with the stored ids and the image beside them.
        alone = await sampled(engine_url, ids, picture)
        assert list(unpack_ids(turn["sampled_ids"])) == alone
        assert (turn["trainable"], turn["untrainable_reason"]) == (False, "media")
        assert turn["messages"][0]["content"][1]["media"]["kind"] == "image"
    assert red["sampled_ids"] != blue["sampled_ids"]


async def test_what_follows_is_asked_over_the_same_ids(gateway: Gateway) -> None:
    told: list[Any] = [asked(RED)]
    async with gateway.client() as client:
        first = await client.chat.completions.create(
            model="tiny", messages=told, response_format=SAYS_RED
        )
        assert first.choices[0].message.content == '"red"'
        told += [
            first.choices[0].message.model_dump(exclude_none=True),
            {"role": "user", "content": "And its size?"},
        ]
        stream = await client.chat.completions.create(
            model="tiny",
            messages=told,
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
        usage = [chunk.usage async for chunk in stream if chunk.usage][-1]
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert (two["parent_id"], two["branch_reason"]) == (one["id"], None)
    assert two["shared_len"] == one["prompt_len"] + one["completion_len"]
    assert usage.prompt_tokens == two["prompt_len"] + MORE


async def test_an_image_is_counted_as_the_engine_counts_it(gateway: Gateway) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": text_of(RED)}
    content = [{"type": "text", "text": "What? "}, {"type": "image", "source": source}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
    async with aiohttp.ClientSession(headers={"x-api-key": gateway.keys.agent}) as http:
        async with http.post(f"{gateway.url}/v1/messages/count_tokens", json=body) as answer:
            counted = (await answer.json())["input_tokens"]
        async with http.post(
            f"{gateway.url}/v1/messages", json={**body, "max_tokens": 3}
        ) as answer:
            usage = (await answer.json())["usage"]
    seen = usage["input_tokens"] + (usage["cache_read_input_tokens"] or 0)
    [turn] = await gateway.rows("SELECT prompt_len FROM turns")
    assert counted == seen == turn["prompt_len"] + MORE


async def test_ids_that_its_text_model_lacks_are_not_sent(model: Path, engine_url: str) -> None:
    """They would crash the server, for everyone."""
    size = json.loads((model / "config.json").read_text())["text_config"]["vocab_size"]
    engine = SglangEngine(EngineSettings(name="engine", url=engine_url))
    try:
        assert (await engine.status()).vocab_size == size
        with pytest.raises(EngineRejected):
            await engine.score([1, size], 1, BASE)
        assert len(await engine.score([1, size - 1], 1, BASE)) == 1
    finally:
        await engine.close()


async def sampled(url: str, ids: list[int], picture: bytes) -> list[int]:
    """What the engine samples at temperature 0."""
    body = {
        "input_ids": ids,
        "image_data": [data_url(picture)],
        "sampling_params": {"max_new_tokens": 6, "temperature": 0},
    }
    async with aiohttp.ClientSession() as http, http.post(f"{url}/generate", json=body) as answer:
        output: list[int] = (await answer.json())["output_ids"]
        return output
