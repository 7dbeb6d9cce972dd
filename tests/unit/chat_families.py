"""Chat templates that give the prompts of the families proved here, and small models with them.

Written anew from what the families' own templates give; that they give the same is tested against
the `renderers` package and, for SmolLM2, against the template in its own file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from gateway.tokens import tokenizer as ours

SMOLLM2 = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

#: Tools and system prompt in one message, reasoning only after the last question, runs of tool
#: results in one user message.
QWEN3 = r"""
{%- set first = messages[0].content if messages[0].role == 'system' else none %}
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if first is not none %}{{- first ~ '\n\n' }}{%- endif %}
{{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' }}
{%- for tool in tools %}{{- '\n' ~ (tool | tojson) }}{%- endfor %}
{{- '\n</tools>\n\nFor each function call, return a json object with function name and ' }}
{{- 'arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- elif first is not none %}
{{- '<|im_start|>system\n' ~ first ~ '<|im_end|>\n' }}
{%- endif %}
{%- set seen = namespace(question=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if not (message.content.startswith('<tool_response>')
            and message.content.endswith('</tool_response>')) %}
{%- set seen.question = loop.index0 %}
{%- endif %}
{%- endif %}
{%- endfor %}
{%- if seen.question < 0 %}{%- set seen.question = messages | length - 1 %}{%- endif %}
{%- for message in messages %}
{%- set content = message.content or '' %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' ~ message.role ~ '\n' ~ content ~ '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set thought = message.reasoning_content or '' %}
{%- if not thought and '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > seen.question and (loop.last or thought) %}
{{- '<think>\n' ~ thought.strip('\n') ~ '\n</think>\n\n' ~ content.lstrip('\n') }}
{%- else %}
{{- content }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- if content or not loop.first %}{{- '\n' }}{%- endif %}
{{- '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson }}{%- endif %}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}
{%- endif %}
{{- '\n<tool_response>\n' ~ content ~ '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\n\n</think>\n\n' }}
{%- endif %}
{%- endif %}"""

#: A thinking-only model: the prompt opens the reasoning.
QWEN3_THINKING = QWEN3.replace(
    "{%- if enable_thinking is defined and not enable_thinking %}\n"
    "{{- '<think>\\n\\n</think>\\n\\n' }}\n{%- endif %}",
    "{{- '<think>\\n' }}",
)

#: 3.2; the tools stand in the first question, one call a message, results as JSON from `ipython`.
LLAMA32 = r"""
{{- bos_token }}
{%- set where = tools_in_user_message if tools_in_user_message is defined else true %}
{%- set offered = tools if tools else none %}
{%- set today = date_string if date_string is defined else strftime_now('%d %b %Y') %}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content | trim %}
{%- set messages = messages[1:] %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if offered %}{{- 'Environment: ipython\n' }}{%- endif %}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: ' ~ today ~ '\n\n' }}
{%- set form %}Respond in the format {"name": function name, "parameters": {#-
#} dictionary of argument name and its value}.Do not use variables.{% endset %}
{%- if offered and not where %}
{{- 'You have access to the following functions. To call a function, ' }}
{{- 'please respond with JSON for a function call.' ~ form ~ '\n\n' }}
{%- for tool in offered %}{{- (tool | tojson(indent=4)) ~ '\n\n' }}{%- endfor %}
{%- endif %}
{{- system ~ '<|eot_id|>' }}
{%- if offered and where %}
{%- if not messages %}{{- raise_exception('There is no user message to put the tools in.') }}
{%- endif %}
{{- '<|start_header_id|>user<|end_header_id|>\n\n' }}
{{- 'Given the following functions, please respond with a JSON for a function call ' }}
{{- 'with its proper arguments that best answers the given prompt.\n\n' ~ form ~ '\n\n' }}
{%- for tool in offered %}{{- (tool | tojson(indent=4)) ~ '\n\n' }}{%- endfor %}
{{- (messages[0].content | trim) ~ '<|eot_id|>' }}
{%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
{%- if message.role in ('tool', 'ipython') %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
{{- (message.content | tojson) ~ '<|eot_id|>' }}
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}
{{- raise_exception('This model takes one call a message.') }}
{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' ~ call.name }}
{{- '", "parameters": ' ~ (call.arguments | tojson) ~ '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' }}
{{- (message.content | trim) ~ '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

#: 3.1 differs where its tools of its own are written with a tag and end in `<|eom_id|>`.
LLAMA31 = LLAMA32.replace(
    '{{- \'<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "\' ~ call.name }}',
    "{%- if builtin_tools is defined and call.name in builtin_tools %}\n"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n<|python_tag|>' ~ call.name }}\n"
    "{{- '.call()<|eom_id|>' }}\n"
    "{%- else %}\n"
    '{{- \'<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "\' ~ call.name }}',
).replace(
    "(call.arguments | tojson) ~ '}<|eot_id|>' }}",
    "(call.arguments | tojson) ~ '}<|eot_id|>' }}\n{%- endif %}",
)

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_TAGS = (
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
_LLAMA = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """`special` tokens are hidden, `tags` text of one token; `eos` is what `config.json` names."""

    name: str
    template: str
    special: tuple[str, ...]
    tags: tuple[str, ...] = ()
    eos: tuple[str, ...]
    model_type: str


FAMILIES = {
    family.name: family
    for family in (
        Family(
            name="smollm2",
            template=SMOLLM2,
            special=_CHATML,
            eos=("<|im_end|>",),
            model_type="llama",
        ),
        Family(
            name="qwen3",
            template=QWEN3,
            special=_CHATML,
            tags=_QWEN_TAGS,
            eos=("<|im_end|>", "<|endoftext|>"),
            model_type="qwen3",
        ),
        Family(
            name="qwen3_thinking",
            template=QWEN3_THINKING,
            special=_CHATML,
            tags=_QWEN_TAGS,
            eos=("<|im_end|>", "<|endoftext|>"),
            model_type="qwen3",
        ),
        Family(
            name="llama31",
            template=LLAMA31,
            special=_LLAMA,
            eos=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
            model_type="llama",
        ),
        Family(
            name="llama32",
            template=LLAMA32,
            special=_LLAMA,
            eos=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
            model_type="llama",
        ),
    )
}

_TEXT = (
    "The quick brown fox jumps over the lazy dog. Thanks! user assistant system tool ipython",
    '{"name": "get_weather", "parameters": {"city": "Oslo"}} {"arguments": {"x": 1}}',
) * 10


def write_family(directory: Path, family: Family, **config: Any) -> Path:
    """A model directory of this family, its vocabulary a small byte-level BPE."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        show_progress=False,
        special_tokens=list(family.special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    backend.train_from_iterator(_TEXT, trainer)
    backend.add_tokens([AddedToken(tag, normalized=False) for tag in family.tags])
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    ids = [backend.token_to_id(token) for token in family.eos]
    files = {
        "tokenizer_config.json": {
            "eos_token": family.eos[-1],
            "bos_token": family.special[0],
            "chat_template": family.template,
        },
        "config.json": {
            "model_type": family.model_type,
            "vocab_size": 512,
            "max_position_embeddings": 4096,
            "eos_token_id": ids,
            **config,
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory


def load_family(directory: Path, name: str, **config: Any) -> ours.Tokenizer:
    return ours.Tokenizer.load(write_family(directory, FAMILIES[name], **config))
