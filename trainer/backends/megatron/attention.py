"""Attention within each of several sequences that lie end to end.

t are tokens, h heads, g groups of heads that share keys and values, d the width of a head.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention of torch, a call a sequence; for devices without Transformer Engine.

    A mask over all pairs of tokens would cost the square of their number.
    """

    def __init__(self, config: TransformerConfig, *_: Any, **__: Any) -> None:
        super().__init__(config=config)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_seq_params: PackedSeqParams,
        **_: Any,
    ) -> Tensor:
        """[t, h, d], [t, g, d] and [t, g, d] to [t, h d]."""
        assert attention_mask is None
        found = []
        for start, end in pairwise(packed_seq_params.cu_seqlens_q.tolist()):
            q, k, v = (whole[start:end].transpose(0, 1)[None] for whole in (query, key, value))
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            found.append(mixed[0].transpose(0, 1).flatten(1))
        return torch.cat(found)
