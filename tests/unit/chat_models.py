"""Small model directories made by the tests: a byte-level BPE and chat templates of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{- '<|im_start|>system\\nYou are a default.<|im_end|>\\n' }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}{{- call.function | tojson }}{% endfor %}
{%- else %}{{- message['content'] | trim }}{% endif %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

#: Keeps reasoning only after the last user message, as Qwen3 does, and shows tools.
REASONING = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' %}
{%- if '</think>' in content and loop.index0 < ns.last %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' + content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

#: What precedes depends on how much follows.
COUNTING = "{{ messages | length }} messages\n" + CHATML

SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
)  # fmt: skip
TAGS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"
)  # fmt: skip
_TEXT = [
    "The quick brown fox jumps over the lazy dog. Shorter, please. Thanks! user assistant system",
    'tool {"name": "get_weather", "arguments": {"city": "Paris"}}\nYou are a helpful assistant.',
] * 10


def write_model(
    directory: Path,
    template: str = CHATML,
    *,
    eos: str = "<|im_end|>",
    model_type: str = "llama",
    tags: bool = True,
    **config: Any,
) -> Path:
    """A directory with tokenizer.json, tokenizer_config.json, chat_template.jinja, config.json."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        show_progress=False,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(_TEXT, trainer)
    if tags:
        backend.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    files = {
        "tokenizer_config.json": {"eos_token": eos, "bos_token": {"content": "<|begin_of_text|>"}},
        "config.json": {
            "model_type": model_type,
            "vocab_size": 512,
            "max_position_embeddings": 2048,
            "eos_token_id": backend.token_to_id(eos),
            **config,
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    (directory / "chat_template.jinja").write_text(template)
    return directory
