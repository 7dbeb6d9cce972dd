"""A tiny model that talks: it thinks, calls tools, writes broken UTF-8, and ends its replies.

Its head prefers what follows the last token in a script; two random layers below it make every
probability depend on the whole prompt, so that a prompt that differs anywhere shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from tests.tiny_model import HIDDEN, IM_END, make_model

CONTEXT = 8192

CALL_HEADS = (
    '{"name": "look", "arguments": {"animal": "',
    '{"name": "feed", "arguments": {"legs": 4, "animal": "',
)
CALL_TAIL = '"}}'
#: The engine names the last id of the vocabulary 0 where it scores, so nothing uses it.
_UNUSED = "<|unused|>"

#: (what is written, how often): each is tokenized, and each token prefers those that follow it.
_SCRIPT = (
    ("\n<think>", 5),
    ("<think> again, that helpful</think>", 4),
    ("</think>\n", 1),
    ("</think>The quick", 2),
    ("</think><tool_call>", 3),
    ("\nThe quick brown fox jumps over the lazy dog." + IM_END, 6),
    ("\nThanks, that was good.", 3),
    ("\n<tool_call>", 5),
    (" dog. The capital of France is Paris." + IM_END, 2),
    (" fox na\u00efve \U0001f600" + IM_END, 1),
    (" dog \U0001f468\u200d\U0001f469\u200d\U0001f467 \u00e9", 1),
    (". \u65e5\u672c\u8a9e" + IM_END, 1),
    *((f"<tool_call>{head}{name}{CALL_TAIL}</tool_call>", 3)
      for head in CALL_HEADS for name in ("fox", "dog", "Oslo")),
    ("</tool_call>" + IM_END, 16),
    ("</tool_call><tool_call>", 2),
    ("<tool_call>weather</tool_call>", 1),
)  # fmt: skip

_PREFERENCE = 13.0  # nats above a token that nothing has named
_LAYERS_SCALE = 0.15


def make_talker(directory: Path) -> Path:
    """An HF directory in the form of the other tiny models, with a longer context."""
    make_model(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in (*CALL_HEADS, CALL_TAIL, _UNUSED)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size()
    _change(directory / "config.json", vocab_size=vocab, max_position_embeddings=CONTEXT)
    _change(directory / "tokenizer_config.json", model_max_length=CONTEXT)
    weights = load_file(directory / "model.safetensors")
    rng = np.random.default_rng(7)
    embedding = rng.standard_normal((vocab, HIDDEN)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    head = np.zeros((vocab, HIDDEN), np.float32)
    for (before, after), count in _counts(tokenizer).items():
        # Of several that may follow, a share of the preference in nats.
        head[after] += (_PREFERENCE + np.log(count)) / np.sqrt(HIDDEN) * embedding[before]
    head += rng.standard_normal(head.shape).astype(np.float32) * 0.04
    weights["model.embed_tokens.weight"] = embedding * np.float32(np.sqrt(HIDDEN))
    weights["lm_head.weight"] = head
    for name, value in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = value * np.float32(_LAYERS_SCALE)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _counts(tokenizer: Tokenizer) -> dict[tuple[int, int], int]:
    """How often one token follows another in the script."""
    counts: dict[tuple[int, int], int] = {}
    for pair, weight in _pairs(tokenizer):
        counts[pair] = counts.get(pair, 0) + weight
    return counts


def _pairs(tokenizer: Tokenizer) -> Iterator[tuple[tuple[int, int], int]]:
    for text, weight in _SCRIPT:
        ids = tokenizer.encode(text).ids
        for pair in pairwise(ids):
            yield pair, weight


def _change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=1))


#: Shows tools and calls, keeps all reasoning: what it writes is only ever added to.
KEEPING = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}
{{- '<think>' + message.reasoning_content + '</think>\\n' }}
{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""

#: Shows reasoning only after the last question, so that each question makes a branch.
DROPPING = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
""" + KEEPING.replace(
    "{%- if message.reasoning_content %}",
    "{%- if message.reasoning_content and loop.index0 > ns.last %}",
)
