"""Images and audio through the whole gateway: what an engine is shown, and what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from gateway.config import CaptureSettings, ModelSettings, Settings
from tests.fakes import IDS_SHOWN, FakeSglang
from tests.fakes_openai import FakeOpenAI, says
from tests.fixtures_gateway import Gateway
from tests.media import AUDIO_MARK, IMAGE_MARK, data_url, make_seeing_model, png, text_of, wav
from tests.running import gateway_values, make_keys, running_gateway

RED, BLUE, WAV = png(255), png(0, 0, 255), wav(1, 2, 3)
URL = "https://example.com/a.png"


def user(*parts: Any) -> Any:
    content = [{"type": "text", "text": one} if isinstance(one, str) else one for one in parts]
    return {"role": "user", "content": content}


def image(raw: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(raw)}}


SOUND = {"type": "input_audio", "input_audio": {"data": text_of(WAV), "format": "wav"}}


@asynccontextmanager
async def seeing(
    database_url: str, home: Path, *, keep: bool = False, **model: Any
) -> AsyncIterator[Gateway]:
    directory = make_seeing_model(home / "model")
    async with FakeSglang(model_path=directory) as engine:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, directory, engine.url, home)
        values["model"] = ModelSettings(path=directory, name="tiny", **model)
        values["capture"] = CaptureSettings(media=keep)
        async with running_gateway(Settings(**values), keys) as running:
            yield Gateway(url=running.url, keys=keys, services=running.services, engine=engine)


@pytest.fixture
async def gateway(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with seeing(database_url, tmp_path) as running:
        yield running


def block_of(raw: bytes) -> dict[str, Any]:
    """A message of the Messages dialect."""
    source = {"type": "base64", "media_type": "image/png", "data": text_of(raw)}
    return {
        "role": "user",
        "content": [{"type": "text", "text": "What? "}, {"type": "image", "source": source}],
    }


async def post(gateway: Gateway, path: str, body: Any) -> tuple[int, Any]:
    headers = {"x-api-key": gateway.keys.agent}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(gateway.url + path, json=body) as response,
    ):
        return response.status, await response.json()


def prompt_of(gateway: Gateway, number: int = -1) -> str:
    return gateway.services.tokenizer.decode(gateway.engine.requests[number]["input_ids"])


async def test_an_engine_is_shown_what_the_marks_stand_for(gateway: Gateway) -> None:
    gateway.says("A fox.")
    asked = user("One ", image(RED), " and ", image(BLUE), " with ", SOUND, "?")
    async with gateway.client() as client:
        reply = await client.chat.completions.create(model="tiny", messages=[asked])
    assert reply.choices[0].message.content == "A fox."
    [request] = gateway.engine.requests
    assert request["image_data"] == [data_url(RED), data_url(BLUE)]
    assert request["audio_data"] == [data_url(WAV, "audio/wav")]
    assert prompt_of(gateway) == (
        f"<|im_start|>user\nOne {IMAGE_MARK} and {IMAGE_MARK} with {AUDIO_MARK}?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    # How long a reply may be the engine alone knows, which puts the images in.
    assert request["sampling_params"]["max_new_tokens"] is None
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(request["input_ids"]) + 3 * (IDS_SHOWN - 1)


async def test_such_a_turn_is_captured_judged_and_not_trained(gateway: Gateway) -> None:
    gateway.says("A fox.")
    gateway.says("Blue.")
    told: list[Any] = [user("What is it?", image(RED), SOUND)]
    async with gateway.client() as client:
        first = await client.chat.completions.create(model="tiny", messages=told)
        told += [first.choices[0].message.model_dump(exclude_none=True), user("And its colour?")]
        await client.chat.completions.create(model="tiny", messages=told)
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    for turn in (one, two):
        assert (turn["trainable"], turn["untrainable_reason"]) == (False, "media")
    _, shown, heard = one["messages"][0]["content"]
    assert set(shown) == {"type", "media"}
    assert shown["media"]["bytes"] == len(RED)
    assert (heard["media"]["kind"], heard["media"]["type"]) == ("audio", "audio/wav")
    # The next turn extends the recorded ids, and its engine is shown everything again.
    assert (two["parent_id"], two["branch_reason"]) == (one["id"], None)
    before, after = gateway.engine.requests
    assert after["input_ids"][: len(before["input_ids"])] == before["input_ids"]
    assert two["shared_len"] == len(before["input_ids"]) + one["completion_len"]
    assert after["image_data"] == [data_url(RED)]
    [job] = await gateway.rows("SELECT turn_id, state FROM judgements")
    assert (job["turn_id"], job["state"]) == (one["id"], "queued")


async def test_other_pixels_are_another_conversation(gateway: Gateway) -> None:
    for _ in range(4):
        gateway.says("A fox.")
    reply = {"role": "assistant", "content": "A fox."}
    async with gateway.client() as client:
        create: Any = client.chat.completions.create
        for raw in (RED, BLUE):
            await create(model="tiny", messages=[user("What?", image(raw))])
        for raw in (BLUE, RED):
            detailed = {"type": "image_url", "image_url": {"url": data_url(raw), "detail": "low"}}
            asked = [user("What?", detailed), reply, user("Sure?")]
            await create(model="tiny", messages=asked)
    red, blue, of_blue, of_red = await gateway.rows("SELECT id, parent_id FROM turns ORDER BY id")
    assert (of_blue["parent_id"], of_red["parent_id"]) == (blue["id"], red["id"])


async def test_every_dialect_shows_the_same(gateway: Gateway) -> None:
    for _ in range(3):
        gateway.says("A fox.")
    async with gateway.client() as client:
        await client.chat.completions.create(
            model="tiny", messages=[user("What? ", image(RED))], max_tokens=9
        )
        await client.responses.create(
            model="tiny",
            input=[
                {"role": "user", "content": [
                    {"type": "input_text", "text": "What? "},
                    {"type": "input_image", "image_url": data_url(RED), "detail": "auto"}]}
            ],
        )  # fmt: skip
    asked = {"model": "tiny", "max_tokens": 9_999, "messages": [block_of(RED)]}
    status, reply = await post(gateway, "/v1/messages", asked)
    assert status == 200
    chat, response, message = gateway.engine.requests
    assert chat["input_ids"] == response["input_ids"] == message["input_ids"]
    assert chat["image_data"] == response["image_data"] == message["image_data"]
    # A limit above the context is the engine's to draw.
    assert message["sampling_params"]["max_new_tokens"] is None
    assert reply["usage"]["input_tokens"] == len(message["input_ids"]) + IDS_SHOWN - 1


async def test_a_response_is_continued_where_media_is_kept(
    database_url: str, tmp_path: Path
) -> None:
    asked: Any = [
        {"role": "user", "content": [{"type": "input_image", "image_url": data_url(RED)}]}
    ]
    async with seeing(database_url, tmp_path, keep=True) as gateway:
        gateway.says("A fox.")
        gateway.says("Red.")
        async with gateway.client() as client:
            first = await client.responses.create(model="tiny", input=asked)
            await client.responses.create(
                model="tiny", input="Its colour?", previous_response_id=first.id
            )
            items = await client.responses.input_items.list(first.id)
        assert items.data[0].model_dump()["content"][0]["image_url"] == data_url(RED)
        assert gateway.engine.requests[1]["image_data"] == [data_url(RED)]
        [root, _] = await gateway.rows("SELECT messages FROM turns ORDER BY id")
        assert root["messages"][0]["content"][0]["image_url"]["url"] == data_url(RED)


async def test_a_response_that_has_lost_its_image_says_so(gateway: Gateway) -> None:
    gateway.says("A fox.")
    asked: Any = [
        {"role": "user", "content": [{"type": "input_image", "image_url": data_url(RED)}]}
    ]
    async with gateway.client() as client:
        first = await client.responses.create(model="tiny", input=asked)
        items = await client.responses.input_items.list(first.id)
        assert items.data[0].model_dump()["content"][0]["image_url"] is None
        with pytest.raises(openai.BadRequestError, match="send the whole conversation again"):
            await client.responses.create(
                model="tiny", input="Its colour?", previous_response_id=first.id
            )
        # The same, sent in full, continues the turn.
        gateway.says("Red.")
        output: Any = [{"role": "assistant", "content": "A fox."}]
        more: Any = [*asked, *output, {"role": "user", "content": "Its colour?"}]
        await client.responses.create(model="tiny", input=more)
    one, two = await gateway.rows("SELECT id, parent_id FROM turns ORDER BY id")
    assert two["parent_id"] == one["id"]


async def test_an_address_is_the_engines_to_fetch_where_that_is_allowed(
    database_url: str, tmp_path: Path
) -> None:
    asked = user({"type": "image_url", "image_url": {"url": URL}})
    async with seeing(database_url, tmp_path, fetch_media=True) as gateway:
        gateway.says("A fox.")
        async with gateway.client() as client:
            await client.chat.completions.create(model="tiny", messages=[asked])
        assert gateway.engine.requests[0]["image_data"] == [URL]
        [turn] = await gateway.rows("SELECT messages FROM turns")
        assert turn["messages"][0]["content"][0]["image_url"]["url"] == URL


async def test_what_is_refused_never_reaches_the_engine(gateway: Gateway) -> None:
    refused: list[tuple[Any, str]] = [
        (user({"type": "image_url", "image_url": {"url": URL}}), "nothing is fetched here"),
        (user({"type": "image_url", "image_url": {"url": "file:///etc/hosts"}}), "http"),
        (user(f"{IMAGE_MARK}?", image(RED)), "holds a mark"),
        (user("<|image_pad|>", image(RED)), "holds a mark"),
        (user(image(b"no image")), "is no image/png"),
        (user({"type": "video_url", "video_url": {"url": "data:,"}}), "video"),
    ]
    async with gateway.client() as client:
        for message, words in refused:
            with pytest.raises(openai.BadRequestError, match=words):
                await client.chat.completions.create(model="tiny", messages=[message])
    assert gateway.engine.requests == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            f"An exception occurred while loading multimodal data: {data_url(RED)[:40]}...: no",
            "an image or audio clip cannot be opened",
        ),
        ("The input (4096 tokens) is longer than the model's context length.", "4096 tokens"),
    ],
)
async def test_what_the_engine_cannot_open_is_the_clients_error(
    gateway: Gateway, words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for status in (400, 500) if "multimodal" in words else (400,):
        gateway.engine.faults.refuse_once.append((status, words))
        async with gateway.client() as client:
            with pytest.raises(openai.BadRequestError, match=told):
                await client.chat.completions.create(model="tiny", messages=[user(image(RED))])
    assert await gateway.rows("SELECT 1 FROM turns") == []
    assert "iVBORw0KGgo" not in "".join(capsys.readouterr())


async def test_a_mark_that_the_model_wrote_is_no_image(gateway: Gateway) -> None:
    gateway.says("A <|image_pad|>.")
    gateway.says("Yes.")
    told: list[Any] = [user("What is it?", image(RED))]
    async with gateway.client() as client:
        create: Any = client.chat.completions.create
        first = await create(model="tiny", messages=told)
        assert first.choices[0].message.content == "A ."
        told += [{"role": "assistant", "content": "A ."}, user("Sure?")]
        await create(model="tiny", messages=told)
    assert prompt_of(gateway).count("<|image_pad|>") == 1
    _, two = await gateway.rows("SELECT branch_reason FROM turns ORDER BY id")
    assert two["branch_reason"] == "media_marks_differ"


async def test_tokens_of_what_is_shown_are_counted_by_the_engine(gateway: Gateway) -> None:
    path, asked = "/v1/messages/count_tokens", {"model": "tiny", "messages": [block_of(RED)]}
    status, counted = await post(gateway, path, asked)
    assert (status, [*counted]) == (200, ["input_tokens"])
    [request] = [body for body in gateway.engine.requests if "image_data" in body]
    assert request["sampling_params"]["max_new_tokens"] == 1
    # The mark of the image is one id of the prompt, which the engine unfolds.
    assert counted["input_tokens"] == len(request["input_ids"]) + IDS_SHOWN - 1
    status, reply = await post(gateway, "/v1/messages", {**asked, "max_tokens": 4})
    assert (status, reply["usage"]["input_tokens"]) == (200, counted["input_tokens"])


async def test_the_operator_may_say_that_it_takes_text_alone(
    database_url: str, tmp_path: Path
) -> None:
    async with seeing(database_url, tmp_path, modalities=()) as gateway, gateway.client() as client:
        with pytest.raises(openai.BadRequestError, match="does not take image content"):
            await client.chat.completions.create(model="tiny", messages=[user(image(RED))])


@pytest.mark.parametrize("modalities", [("image",), ()])
async def test_an_upstream_gets_parts_as_they_came(
    database_url: str, tmp_path: Path, modalities: tuple[str, ...]
) -> None:
    asked = user("What?", {"type": "image_url", "image_url": {"url": URL, "detail": "low"}})
    async with FakeOpenAI() as upstream:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, tmp_path, "", tmp_path)
        values["model"] = ModelSettings(name="tiny")
        values["engines"] = (
            {"kind": "openai", "url": upstream.url, "modalities": modalities, "fetch_media": True},
        )
        async with (
            running_gateway(Settings(**values), keys) as running,
            running.client() as client,
        ):
            if not modalities:
                with pytest.raises(openai.BadRequestError, match="does not take image content"):
                    await client.chat.completions.create(model="tiny", messages=[asked])
                assert upstream.requests == []
                return
            upstream.replies.append(says("A fox."))
            reply = await client.chat.completions.create(model="tiny", messages=[asked])
            with pytest.raises(openai.BadRequestError, match="audio"):
                await client.chat.completions.create(model="tiny", messages=[user(SOUND)])
            assert reply.choices[0].message.content == "A fox."
            assert upstream.requests[0]["messages"] == [asked]
            [turn] = await running.rows("SELECT untrainable_reason, messages FROM turns")
            assert turn["untrainable_reason"] == "no_token_ids"
            assert turn["messages"][0]["content"][1]["media"]["kind"] == "image"
