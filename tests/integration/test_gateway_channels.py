"""Replies with tags of their own through the whole gateway: reasoning, a call, an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from tests.fixtures_gateway import Gateway, fake_gateway
from tests.tiny_model import make_model

#: As gpt-oss is prompted, but for its preamble; analysis is said in the reply's own template only.
HARMONY_TEMPLATE = """\
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
#: As Gemma 4 is prompted, but for its preamble: what a call gives stands in the same turn. A name
#: is looked for among the calls before, and here there is one.
GEMMA_TEMPLATE = """\
{%- for message in messages %}
{%- set goes_on = not loop.first and messages[loop.index0 - 1]['role'] == 'tool' %}
{%- if message['role'] == 'assistant' %}
{{- '' if goes_on else '<|turn>model\\n' }}
{%- for call in message['tool_calls'] or () %}
{{- '<|tool_call>call:' + call['function']['name'] + '{' }}
{%- for key, value in call['function']['arguments'] | items %}
{{- ('' if loop.first else ',') + key + ':<|"|>' + value + '<|"|>' }}
{%- endfor %}
{{- '}<tool_call|>' }}
{%- endfor %}
{{- '<|tool_response>' if message['tool_calls'] else message['content'] + '<turn|>\\n' }}
{%- elif message['role'] == 'tool' %}
{{- '<|tool_response>' if goes_on else '' }}
{{- 'response:look{value:<|"|>' + message['content'] + '<|"|>}<tool_response|>' }}
{%- else %}
{{- '<|turn>' + message['role'] + '\\n' + message['content'] + '<turn|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1]['role'] != 'tool' %}
{{- '<|turn>model\\n' }}
{%- endif %}
{#- <|channel>thought <channel|> -#}
"""
#: As Inkling is prompted, but for the effort.
INKLING_TEMPLATE = """\
{%- for message in messages %}
{%- if message['role'] == 'assistant' %}
{%- if message['content'] %}
{{- '<|message_model|><|content_text|>' + message['content'] + '<|end_message|>' }}
{%- endif %}
{%- for call in message['tool_calls'] or () %}
{{- '<|message_model|>' + call['function']['name'] + '<|content_invoke_tool_json|>{"name":' }}
{{- (call['function']['name'] | tojson) + ',"args":' }}
{{- (call['function']['arguments'] | tojson) + '}<|end_message|>' }}
{%- endfor %}
{{- '<|content_model_end_sampling|>' }}
{%- elif message['role'] == 'tool' %}
{{- '<|message_tool|>look<|content_text|>' + message['content'] }}
{{- '<|end_message|>' }}
{%- else %}
{{- '<|message_' + message['role'] + '|><|content_text|>' + message['content'] }}
{{- '<|end_message|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|message_model|>' }}{% endif %}
{#- <|content_thinking|> -#}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A family's replies: reasoning, a call of `look` in Oslo, an answer, and what stands between.

    `result` is what a prompt has between the call and the next reply.
    """

    template: str
    marks: tuple[str, ...]
    thought: str
    gap: str = ""
    call: str
    answer: str
    result: str


FAMILIES = {
    "harmony": Spoken(
        template=HARMONY_TEMPLATE,
        marks=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>",
               "<|return|>"),
        thought="<|channel|>analysis<|message|>Where?<|end|>",
        gap="<|start|>assistant",
        call=(
            "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
            '{"city": "Oslo"}<|call|>'
        ),
        answer="<|channel|>final<|message|>12.<|return|>",
        result=(
            "<|start|>functions to=assistant<|channel|>commentary<|message|>12<|end|>"
            "<|start|>assistant"
        ),
    ),
    "gemma4": Spoken(
        template=GEMMA_TEMPLATE,
        marks=("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>",
               "<|tool_response>", "<tool_response|>", '<|"|>'),
        thought="<|channel>thought\nWhere?\n<channel|>",
        call='<|tool_call>call:look{city:<|"|>Oslo<|"|>}<tool_call|><|tool_response>',
        answer="12.<turn|>",
        result='response:look{value:<|"|>12<|"|>}<tool_response|>',
    ),
    "inkling": Spoken(
        template=INKLING_TEMPLATE,
        marks=("<|message_user|>", "<|message_model|>", "<|message_tool|>", "<|content_text|>",
               "<|content_thinking|>", "<|content_invoke_tool_json|>", "<|end_message|>",
               "<|content_model_end_sampling|>"),
        thought="<|content_thinking|>Where?<|end_message|>",
        gap="<|message_model|>",
        call=(
            'look<|content_invoke_tool_json|>{"name":"look","args":{"city": "Oslo"}}'
            "<|end_message|><|content_model_end_sampling|>"
        ),
        answer="<|content_text|>12.<|end_message|><|content_model_end_sampling|>",
        result="<|message_tool|>look<|content_text|>12<|end_message|><|message_model|>",
    ),
}  # fmt: skip
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def write_model(directory: Path, spoken: Spoken) -> Path:
    model = make_model(directory)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in spoken.marks])
    tokenizer.save(str(model / "tokenizer.json"))
    path = model / "config.json"
    size = {"vocab_size": tokenizer.get_vocab_size()}
    path.write_text(json.dumps(json.loads(path.read_text()) | size))
    (model / "chat_template.jinja").write_text(spoken.template)
    return model


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_tags_become_reasoning_a_call_and_an_answer(
    database_url: str, tmp_path: Path, family: str
) -> None:
    spoken = FAMILIES[family]
    model = write_model(tmp_path / "model", spoken)
    async with fake_gateway(database_url, model, tmp_path) as gateway:
        await told(gateway, spoken)


async def told(gateway: Gateway, spoken: Spoken) -> None:
    encode = gateway.services.tokenizer.encode
    sampled = encode(spoken.thought + spoken.gap + spoken.call)
    gateway.engine.replies += [sampled, encode(spoken.thought + spoken.gap + spoken.answer)]
    said: list[Any] = [{"role": "user", "content": "How cold?"}]
    async with gateway.client() as client:
        stream: Any = await client.chat.completions.create(
            model="tiny", messages=said, tools=TOOLS, stream=True
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
        said += [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": calls[0].id, "content": "12"},
        ]
        reply: Any = await client.chat.completions.create(model="tiny", messages=said, tools=TOOLS)
    message = reply.choices[0].message
    assert (message.content, message.reasoning_content) == ("12.", "Where?")
    assert reply.usage.completion_tokens_details.reasoning_tokens == len(encode(spoken.thought))
    one, two = await gateway.rows("SELECT * FROM turns ORDER BY id")
    for turn in (one, two):
        assert (turn["trainable"], turn["stream_mismatch"]) == (True, False)
    first, second = (request["input_ids"] for request in gateway.engine.requests)
    assert second == first + sampled + encode(spoken.result)
    assert (two["parent_id"], two["branch_reason"]) == (one["id"], None)
