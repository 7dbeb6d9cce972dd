"""Rotary embedding with the frequencies of the Hugging Face model, scaled as it scales them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from torch import Tensor

#: Kinds whose frequencies do not depend on the sequence.
KINDS = ("default", "linear", "llama3")


class Rotary(RotaryEmbedding):  # type: ignore[misc]
    """Angles of the first positions; Megatron begins anew at each sequence of a pack."""

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__(2 * len(frequencies), 1.0, use_cpu_initialization=True)
        self.inv_freq = frequencies

    def forward(self, max_seq_len: int, *_: Any, **__: Any) -> Tensor:
        """[max_seq_len, 1, 1, head_dim], float32."""
        places = torch.arange(max_seq_len, device=self.inv_freq.device, dtype=torch.float32)
        angles = torch.outer(places, self.inv_freq)
        return torch.cat((angles, angles), -1)[:, None, None, :]


def frequencies(parameters: Mapping[str, Any], width: int) -> Tensor:
    """[width / 2] in float32, from the `rope_parameters` of a configuration.

    θ^(-2i / width). `linear` divides all by a factor; `llama3` (Llama 3.1) those whose wave is
    longer than the context of the pretraining, and blends up to a shorter one.
    """
    theta: float = parameters["rope_theta"]
    found = 1.0 / torch.pow(theta, torch.arange(0, width, 2).float() / width)
    if parameters["rope_type"] == "default":
        return found
    factor: float = parameters["factor"]
    slow = found / factor
    if parameters["rope_type"] == "linear":
        return slow
    low: float = parameters["low_freq_factor"]
    high: float = parameters["high_freq_factor"]
    context: int = parameters["original_max_position_embeddings"]
    turns = context * found / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * slow + share * found
