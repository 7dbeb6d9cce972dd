"""Replies in channels through the whole gateway: reasoning, a call, an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from tests.fixtures_gateway import Gateway, fake_gateway
from tests.tiny_model import make_model

MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>",
         "<|return|>")  # fmt: skip
#: As gpt-oss is prompted, but for its preamble; analysis is said in the reply's own template only.
TEMPLATE = """\
{%- for message in messages %}
{%- if message['role'] == 'assistant' and message['tool_calls'] %}
{%- for call in message['tool_calls'] %}
{{- '<|start|>assistant<|channel|>commentary to=functions.' + call['function']['name'] }}
{{- ' <|constrain|>json<|message|>' + (call['function']['arguments'] | tojson) + '<|call|>' }}
{%- endfor %}
{%- elif message['role'] == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message['content'] }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- elif message['role'] == 'tool' %}
{{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' + message['content'] }}
{{- '<|end|>' }}
{%- else %}
{{- '<|start|>' + message['role'] + '<|message|>' + message['content'] + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
{#- <|channel|>analysis -#}
"""
THOUGHT = "<|channel|>analysis<|message|>Where?<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"city": "Oslo"}'
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.fixture
async def gateway(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    model = make_model(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    tokenizer.save(str(model / "tokenizer.json"))
    path = model / "config.json"
    size = {"vocab_size": tokenizer.get_vocab_size()}
    path.write_text(json.dumps(json.loads(path.read_text()) | size))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    async with fake_gateway(database_url, model, tmp_path) as running:
        yield running


async def test_channels_become_reasoning_a_call_and_an_answer(gateway: Gateway) -> None:
    encode = gateway.services.tokenizer.encode
    sampled = encode(f"{THOUGHT}{CALL}<|call|>")
    gateway.engine.replies += [
        sampled,
        encode(f"{THOUGHT}<|channel|>final<|message|>12.<|return|>"),
    ]
    told: list[Any] = [{"role": "user", "content": "How cold?"}]
    async with gateway.client() as client:
        stream: Any = await client.chat.completions.create(
            model="tiny", messages=told, tools=TOOLS, stream=True
        )
        choices = [chunk.choices[0] async for chunk in stream if chunk.choices]
        thought = "".join(getattr(one.delta, "reasoning_content", None) or "" for one in choices)
        calls = [call for one in choices for call in one.delta.tool_calls or ()]
        assert (thought, choices[-1].finish_reason) == ("Where?", "tool_calls")
        assert not any(one.delta.content for one in choices)
        assert calls[0].function.name == "look"
        arguments = "".join(call.function.arguments or "" for call in calls)
        assert arguments == '{"city": "Oslo"}'
        function = {"name": "look", "arguments": arguments}
        made = {"id": calls[0].id, "type": "function", "function": function}
        told += [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": calls[0].id, "content": "12"},
        ]
        reply: Any = await client.chat.completions.create(model="tiny", messages=told, tools=TOOLS)
    message = reply.choices[0].message
    assert (message.content, message.reasoning_content) == ("12.", "Where?")
    assert reply.usage.completion_tokens_details.reasoning_tokens == len(
        encode("<|channel|>analysis<|message|>Where?<|end|>")
    )
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    for turn in (one, two):
        assert (turn["trainable"], turn["stream_mismatch"]) == (True, False)
    first, second = (request["input_ids"] for request in gateway.engine.requests)
    result = "<|start|>functions to=assistant<|channel|>commentary<|message|>12<|end|>"
    assert second == first + sampled + encode(f"{result}<|start|>assistant")
    assert (two["parent_id"], two["branch_reason"]) == (one["id"], None)
