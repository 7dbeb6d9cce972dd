"""What an image or a sound is in the canonical form of a conversation: its bytes."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from gateway.config import ServerSettings
from gateway.records import Message, media_of, plain_parts, without_data
from gateway.resolve import chain, request_hash
from gateway.resolve.echoes import echoes_of
from gateway.wire.anthropic_messages import AnthropicMessages
from gateway.wire.media import MediaRules
from gateway.wire.openai_chat import OpenAIChat
from tests.media import data_url, png, text_of, wav

RULES = MediaRules(kinds=frozenset({"image", "audio"}), fetched=True)
RED, BLUE = png(255), png(0, 0, 255)
START = UUID(int=3).bytes


def read(*parts: dict[str, Any]) -> tuple[Message, ...]:
    content = [{"type": "text", "text": "What is it?"}, *parts]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    return OpenAIChat(RULES).parse(json.dumps(body).encode(), {}, ServerSettings()).messages


def image(raw: bytes, type_: str = "image/png", **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(raw, type_), **more}}


def sound(raw: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": text_of(raw), "format": "wav"}}


def hash_of(*parts: dict[str, Any]) -> bytes:
    return chain(read(*parts), START)[-1]


def test_different_bytes_are_different_conversations() -> None:
    at = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    shown = [
        hash_of(),
        hash_of(image(RED)),
        hash_of(image(BLUE)),
        hash_of(image(RED), image(BLUE)),
        hash_of(image(BLUE), image(RED)),
        hash_of(sound(wav(1))),
        hash_of(sound(wav(2))),
        hash_of(at),
    ]
    assert len(set(shown)) == len(shown)


def test_how_the_same_bytes_are_written_does_not_matter() -> None:
    plain = hash_of(image(RED))
    assert hash_of(image(RED, detail="high")) == plain
    assert hash_of(image(RED, "image/jpeg")) == plain
    assert hash_of({**image(RED), "cache_control": {"type": "ephemeral"}}) == plain
    block = {"type": "base64", "media_type": "image/png", "data": text_of(RED)}
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "What is it?"}, {"type": "image", "source": block}]}
        ],
    }  # fmt: skip
    dialect = AnthropicMessages(RULES)
    messages = dialect.parse(json.dumps(body).encode(), {}, ServerSettings()).messages
    assert chain(messages, START)[-1] == plain


def test_messages_without_their_data_are_the_same_conversation() -> None:
    messages = read(image(RED), sound(wav(1)))
    bare = without_data(messages)
    assert chain(bare, START) == chain(messages, START)
    assert request_hash(bare, ()) == request_hash(messages, ())
    assert request_hash(read(image(BLUE)), ()) != request_hash(read(image(RED)), ())
    assert text_of(RED) not in json.dumps(bare)
    assert [one.source for one in media_of(bare)] == ["", ""]
    assert [one.kind for one in media_of(messages)] == ["image", "audio"]


def test_addresses_may_be_kept() -> None:
    at = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    messages = read(at, image(RED))
    kept = without_data(messages, urls=True)
    assert [one.source for one in media_of(kept)] == ["https://example.com/a.png", ""]
    assert [one.source for one in media_of(without_data(messages))] == ["", ""]


def test_an_upstream_gets_parts_as_they_came() -> None:
    sent = [image(RED, detail="low"), sound(wav(1))]
    [message] = plain_parts(read(*sent))
    assert message["content"][1:] == sent


def test_outlines_of_different_images_differ() -> None:
    reply = {"role": "assistant", "content": "A fox."}
    red, again, blue = (echoes_of(read(image(raw)), reply, START) for raw in (RED, RED, BLUE))
    assert red == again
    assert not set(red) & set(blue)
