"""The stage of the model that this process computes, of Megatron's own parts."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.extensions.transformer_engine import HAVE_TE, TENorm
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.functional import silu

from gateway.device import Device
from gateway.errors import ConfigError
from trainer.backends.megatron.architecture import Architecture
from trainer.backends.megatron.attention import PackedAttention
from trainer.backends.megatron.norm import RootMeanSquareNorm
from trainer.backends.megatron.parallel import Parallel
from trainer.backends.megatron.rotary import Rotary
from trainer.megatron_settings import MegatronSettings


class Trunk(GPTModel):  # type: ignore[misc]
    """Ends in hidden states [t, 1, H]: logits are made where a token was sampled, and only there.

    With `sequence_parallel` this process holds its share of the t.
    """

    def _postprocess(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states

    @property
    def head(self) -> Tensor:
        """The rows of the output layer [v, H] that this process holds."""
        found: Tensor = (
            self.shared_embedding_or_output_weight()
            if self.share_embeddings_and_output_weights
            else self.output_layer.weight
        )
        return found


def fused(settings: MegatronSettings, device: Device) -> bool:
    """Whether layers are Transformer Engine's. Raises ConfigError where it is not there."""
    if settings.layers == "transformer_engine" and not HAVE_TE:
        raise ConfigError("trainer.megatron.layers: Transformer Engine is not installed")
    if settings.layers == "auto":
        return device == "cuda" and HAVE_TE
    return settings.layers == "transformer_engine"


def make_trunk(
    shape: Architecture,
    settings: MegatronSettings,
    parallel: Parallel,
    *,
    dtype: torch.dtype,
    device: Device,
) -> Trunk:
    """The stage with weights that are not set yet."""
    config = _config(shape, settings, parallel, dtype, device)
    engine = fused(settings, device)
    layer = (
        get_gpt_layer_with_transformer_engine_spec(qk_layernorm=shape.qk_norm)
        if engine
        else _local_layer(shape)
    )
    own = len(parallel.layers(shape.layers))
    norm = TENorm if engine else RootMeanSquareNorm
    trunk = Trunk(
        config,
        TransformerBlockSubmodules(layer_specs=[layer] * own, layer_norm=norm),
        vocab_size=shape.padded_vocab(parallel.tensors),
        max_sequence_length=shape.context,
        pre_process=parallel.first,
        post_process=parallel.last,
        parallel_output=True,
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type="rope",
    )
    trunk.rotary_pos_emb = Rotary(shape.frequencies.to(device))
    # Nothing is dropped at random; a training mode is what some of Megatron's paths ask for.
    trunk.train()
    return trunk


def _finalize(stages: list[Any], _: Tensor | None, **groups: Any) -> None:
    """Add gradients up over processes, without Megatron's division by a number of tokens."""
    finalize_model_grads(stages, None, **groups)


def _local_layer(shape: Architecture) -> Any:
    """Megatron's layer with norms and attention that run on any device."""
    layer = get_gpt_layer_local_spec(qk_layernorm=shape.qk_norm, normalization="RMSNorm")
    layer.submodules.input_layernorm = RootMeanSquareNorm
    layer.submodules.pre_mlp_layernorm = RootMeanSquareNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = PackedAttention
    if shape.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RootMeanSquareNorm
    return layer


def _config(
    shape: Architecture,
    settings: MegatronSettings,
    parallel: Parallel,
    dtype: torch.dtype,
    device: Device,
) -> TransformerConfig:
    recompute: dict[str, Any] = (
        {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
        if settings.recompute
        else {}
    )
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.inner,
        num_attention_heads=shape.heads,
        num_query_groups=shape.groups,
        kv_channels=shape.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=shape.eps,
        qk_layernorm=shape.qk_norm,
        add_qkv_bias=shape.qkv_bias,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        tensor_model_parallel_size=parallel.tensors,
        pipeline_model_parallel_size=parallel.stages,
        sequence_parallel=settings.sequence_parallel,
        # Micro-batches of a step differ in length.
        variable_seq_lengths=parallel.stages > 1,
        # Asked for by the setting above, though no layer has experts.
        moe_token_dispatcher_type="alltoall",  # noqa: S106
        # Losses are sums over a denominator of the whole batch: Megatron divides by nothing.
        calculate_per_token_loss=True,
        finalize_model_grads_func=_finalize,
        use_cpu_initialization=device == "cpu",
        # The values are read later; but with them Megatron marks which weights are shared out.
        perform_initialization=True,
        persist_layer_norm=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        **recompute,
    )
