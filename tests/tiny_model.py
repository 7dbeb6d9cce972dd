"""A model small enough to make for each test run: random weights, a byte-level BPE, ChatML.

Written with numpy alone, so that tests which need no torch do not load it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
#: Ordinary words to the tokenizer's user, single tokens to the model, as in Qwen3.
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")

TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

_TEXT = (
    "The quick brown fox jumps over the lazy dog. You are a helpful assistant.",
    "What is the capital of France? The capital of France is Paris.",
    'Thanks, that was good. No, try again. {"name": "get_weather", "arguments": {"city": "Oslo"}}',
)

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 128, 4, 2, 16, 2
CONTEXT = 2048

#: Linear layers by name: (output, input) widths.
LINEARS = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT * 20, trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    return tokenizer


def make_model(
    directory: Path, *, family: Literal["qwen3", "llama"] = "qwen3", seed: int = 0
) -> Path:
    """An HF directory that SGLang, transformers and the tokenizer's readers all open."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    eos, pad = tokenizer.token_to_id(IM_END), tokenizer.token_to_id(END_OF_TEXT)
    vocab = tokenizer.get_vocab_size()
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM" if family == "qwen3" else "LlamaForCausalLM"],
        "model_type": family,
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "torch_dtype": "float32",
    }
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", {"eos_token_id": eos, "pad_token_id": pad})
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": IM_END,
            "pad_token": END_OF_TEXT,
            "chat_template": TEMPLATE,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
        },
    )
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    rng = np.random.default_rng(seed)
    weights = {name: _tensor(rng, shape) for name, shape in _shapes(family, vocab)}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def make_adapter(directory: Path, *, seed: int = 1, rank: int = 8, scale: float = 0.05) -> Path:
    """A LoRA adapter for the tiny model, in the form that peft writes."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(
        directory / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": None,
            "r": rank,
            "lora_alpha": 2 * rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted(name.split(".")[1] for name in LINEARS),
            "inference_mode": True,
        },
    )
    rng = np.random.default_rng(seed)
    weights = {}
    for layer in range(LAYERS):
        for name, (out, into) in LINEARS.items():
            stem = f"base_model.model.model.layers.{layer}.{name}"
            weights[f"{stem}.lora_A.weight"] = _normal(rng, (rank, into), 0.2)
            weights[f"{stem}.lora_B.weight"] = _normal(rng, (out, rank), scale)
    save_file(weights, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return directory


def _shapes(family: str, vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (vocab, HIDDEN)
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        for name, shape in LINEARS.items():
            yield f"{stem}.{name}.weight", shape
        yield f"{stem}.input_layernorm.weight", (HIDDEN,)
        yield f"{stem}.post_attention_layernorm.weight", (HIDDEN,)
        if family == "qwen3":
            yield f"{stem}.self_attn.q_norm.weight", (HEAD_DIM,)
            yield f"{stem}.self_attn.k_norm.weight", (HEAD_DIM,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (vocab, HIDDEN)


def _tensor(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Norms are ones; wide weights give a distribution that is neither flat nor certain."""
    return np.ones(shape, np.float32) if len(shape) == 1 else _normal(rng, shape, 0.2)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> np.ndarray[Any, Any]:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))
