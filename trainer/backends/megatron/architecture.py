"""What a Hugging Face configuration says of a dense model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig

from gateway.errors import ConfigError
from trainer.backends.megatron.rotary import KINDS, frequencies
from trainer.megatron_settings import MegatronSettings

#: Families by `model_type`: whether queries and keys are normed, and whether they have a bias.
_FAMILIES = {"llama": (False, None), "qwen2": (False, True), "qwen3": (True, None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Widths and switches; `frequencies` [head_dim / 2] of the rotary embedding, float32."""

    layers: int
    hidden: int
    inner: int
    heads: int
    groups: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    frequencies: Tensor
    qk_norm: bool
    qkv_bias: bool
    tied: bool

    @classmethod
    def of(cls, model: Path) -> Architecture:
        """Raises ConfigError for a model that is not of a family known here."""
        config: Any = AutoConfig.from_pretrained(str(model), local_files_only=True)
        family = config.model_type
        if family not in _FAMILIES:
            known = ", ".join(sorted(_FAMILIES))
            raise ConfigError(f"{model}: Megatron trains {known}, not {family}")
        qk_norm, bias = _FAMILIES[family]
        for reason, found in _unlike(config, family).items():
            if found:
                raise ConfigError(f"{model}: Megatron cannot train a model with {reason}")
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=config.num_attention_heads,
            groups=config.num_key_value_heads,
            head_dim=_head_dim(config),
            vocab=config.vocab_size,
            context=config.max_position_embeddings,
            eps=config.rms_norm_eps,
            frequencies=frequencies(config.rope_parameters, _head_dim(config)),
            qk_norm=qk_norm,
            qkv_bias=bool(config.attention_bias) if bias is None else bias,
            tied=bool(config.tie_word_embeddings),
        )

    def padded_vocab(self, tensor: int) -> int:
        """Rows of the embedding, which every one of `tensor` processes holds the same number of."""
        return -(-self.vocab // tensor) * tensor

    def check(self, settings: MegatronSettings) -> None:
        """Raise ConfigError where the model cannot be shared out so."""
        tensor, stages = settings.tensor_parallel, settings.pipeline_parallel
        for what, size in (("heads", self.heads), ("key and value heads", self.groups)):
            if size % tensor:
                raise ConfigError(f"trainer.megatron.tensor_parallel {tensor}: {size} {what}")
        if self.inner % tensor:
            raise ConfigError(
                f"trainer.megatron.tensor_parallel {tensor}: an inner width of {self.inner}"
            )
        if self.layers % stages:
            raise ConfigError(f"trainer.megatron.pipeline_parallel {stages}: {self.layers} layers")


def _head_dim(config: Any) -> int:
    named: int | None = getattr(config, "head_dim", None)
    whole: int = config.hidden_size // config.num_attention_heads
    return named or whole


def _unlike(config: Any, family: str) -> dict[str, bool]:
    """What would make the model compute something else, by whether it is there."""
    rotary = config.rope_parameters["rope_type"]
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    output_bias = family != "qwen2" and bool(getattr(config, "attention_bias", False))
    return {
        f"{rotary} rotary embedding": rotary not in KINDS,
        "a partial rotary embedding": config.rope_parameters.get("partial_rotary_factor", 1) != 1,
        f"{config.hidden_act} activation": config.hidden_act != "silu",
        "attention within windows": set(kinds) != {"full_attention"},
        "a bias at the attention's output": output_bias,
        "a bias in its feed-forward layers": bool(getattr(config, "mlp_bias", False)),
    }
