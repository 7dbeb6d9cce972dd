"""A Qwen2-VL of random weights: small, whole, and run by the real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from tests.clients import locked_python
from tests.media import make_seeing_model
from tests.tiny_model import HIDDEN, LAYERS, LINEARS

#: Widths of the part that sees; a patch is as many pixels a side, and four of them are a token.
_WIDTH, _INNER, _DEPTH, PATCH, _MERGED = 32, 64, 2, 4, 2
_BIASED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

Shape = tuple[int, ...]


def sight() -> list[Path]:
    """What a CPU engine needs on its path to run such a model; installed the first time."""
    packages = locked_python("engine-vision.txt", "engine-vision").parents[1]
    return [Path(__file__).parent / "vision", *packages.glob("lib/*/site-packages")]


def make_vision_model(directory: Path, *, seed: int = 0) -> Path:
    """An HF directory whose images become one token for each 8 by 8 pixels."""
    make_seeing_model(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|video_pad|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size()
    ids = {
        f"{name}_token_id": tokenizer.token_to_id(token)
        for name, token in (
            ("image", "<|image_pad|>"),
            ("video", "<|video_pad|>"),
            ("vision_start", "<|vision_start|>"),
            ("vision_end", "<|vision_end|>"),
        )
    }
    text = json.loads((directory / "config.json").read_text())
    text |= {
        "model_type": "qwen2_vl_text",
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "type": "mrope",
            "rope_theta": 10000.0,
            "mrope_section": [2, 3, 3],
        },
    }
    for name in ("vision_config", "architectures", "attention_bias", "head_dim", "rope_theta"):
        del text[name]
    vision = {
        "model_type": "qwen2_vl_vision",
        "depth": _DEPTH,
        "embed_dim": _WIDTH,
        "hidden_size": HIDDEN,
        "hidden_act": "quick_gelu",
        "num_heads": 2,
        "mlp_ratio": _INNER // _WIDTH,
        "patch_size": PATCH,
        "spatial_merge_size": _MERGED,
        "temporal_patch_size": 2,
        "in_channels": 3,
        # The name that this SGLang reads.
        "in_chans": 3,
    }
    config = {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": vision,
        **ids,
    }
    (directory / "config.json").write_text(json.dumps(config))
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": _MERGED,
        "min_pixels": 64,
        "max_pixels": 4096,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(processor))
    rng = np.random.default_rng(seed)
    weights = {
        name: np.ones(shape, np.float32)
        if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "ln_q.weight"))
        else rng.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in (*_text_shapes(vocab), *_vision_shapes())
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _text_shapes(vocab: int) -> Iterator[tuple[str, Shape]]:
    yield "model.embed_tokens.weight", (vocab, HIDDEN)
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        for name, shape in LINEARS.items():
            yield f"{stem}.{name}.weight", shape
        for name in _BIASED:
            yield f"{stem}.{name}.bias", LINEARS[name][:1]
        yield f"{stem}.input_layernorm.weight", (HIDDEN,)
        yield f"{stem}.post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (vocab, HIDDEN)


def _vision_shapes() -> Iterator[tuple[str, Shape]]:
    yield "visual.patch_embed.proj.weight", (_WIDTH, 3, 2, PATCH, PATCH)
    merged = _WIDTH * _MERGED**2
    linears = {
        "merger.mlp.0": (merged, merged),
        "merger.mlp.2": (HIDDEN, merged),
    }
    norms = ["merger.ln_q"]
    for block in range(_DEPTH):
        stem = f"blocks.{block}"
        linears |= {
            f"{stem}.attn.qkv": (3 * _WIDTH, _WIDTH),
            f"{stem}.attn.proj": (_WIDTH, _WIDTH),
            f"{stem}.mlp.fc1": (_INNER, _WIDTH),
            f"{stem}.mlp.fc2": (_WIDTH, _INNER),
        }
        norms += [f"{stem}.norm1", f"{stem}.norm2"]
    for name, shape in linears.items():
        yield f"visual.{name}.weight", shape
        yield f"visual.{name}.bias", shape[:1]
    for name in norms:
        yield f"visual.{name}.weight", (_WIDTH,)
        yield f"visual.{name}.bias", (_WIDTH,)
