"""A history that ends in the assistant's own words: each dialect does as the original."""

from __future__ import annotations

import json

import aiohttp

from tests.fixtures_gateway import Gateway

ASK = "The quick brown fox?"
BEGUN = "It jumps over"


async def test_a_chat_is_answered_anew(gateway: Gateway) -> None:
    gateway.says("the lazy dog")
    async with gateway.client() as client:
        reply = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": ASK}, {"role": "assistant", "content": BEGUN}],
        )
    assert reply.choices[0].message.content == "the lazy dog"
    prompt = gateway.services.tokenizer.decode(gateway.engine.requests[-1]["input_ids"])
    # What was begun is a turn that is over; the reply is another.
    assert prompt.endswith(f"<|im_start|>assistant\n{BEGUN}<|im_end|>\n<|im_start|>assistant\n")
    [turn] = await gateway.rows("SELECT kind, reply FROM turns")
    assert (turn["kind"], turn["reply"]["content"]) == ("unknown", "the lazy dog")


async def test_a_message_is_refused_with_the_reason(gateway: Gateway) -> None:
    body = {
        "model": "tiny",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": ASK}, {"role": "assistant", "content": BEGUN}],
    }
    headers = {"x-api-key": gateway.keys.agent}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.url}/v1/messages", json=body) as answer,
    ):
        said = json.loads(await answer.text())
        assert answer.status == 400
    assert said["error"]["type"] == "invalid_request_error"
    assert "does not continue a reply" in said["error"]["message"]
    assert await gateway.rows("SELECT 1 FROM turns") == []
