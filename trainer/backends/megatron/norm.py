"""Root mean square norm as the models of Hugging Face compute it."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class RootMeanSquareNorm(torch.nn.Module):
    """Computed in float32; torch's own does not say that its gradient is a part of the whole."""

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.empty(
                hidden_size,
                dtype=config.params_dtype,
                device="cpu" if config.use_cpu_initialization else "cuda",
            )
        )
        # Each process norms its share of the tokens: Megatron adds their gradients up.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self._eps = eps

    def forward(self, states: Tensor) -> Tensor:
        wide = states.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        whole: Tensor = self.weight * scaled.to(states.dtype)
        return whole
