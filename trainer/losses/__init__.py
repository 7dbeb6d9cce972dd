"""Losses as pure functions of tokens, one noun a module; `step` puts them together."""

from __future__ import annotations

from trainer.losses.aggregate import aggregate
from trainer.losses.distillation import taught_advantages, topk_reverse_kl, with_rest
from trainer.losses.entropy import bonus, entropy
from trainer.losses.importance import bounded, effective_share, raw_weights
from trainer.losses.kl import in_reward, kl_estimate, kl_exact, kl_moved
from trainer.losses.masks import opsm, veto
from trainer.losses.measure import measure
from trainer.losses.policy import clipped, log_linear, outside
from trainer.losses.step import credited, kl_term, policy_loss
from trainer.losses.tokens import Size, TokenLoss, Tokens, joined, ratio

__all__ = [
    "Size",
    "TokenLoss",
    "Tokens",
    "aggregate",
    "bonus",
    "bounded",
    "clipped",
    "credited",
    "effective_share",
    "entropy",
    "in_reward",
    "joined",
    "kl_estimate",
    "kl_exact",
    "kl_moved",
    "kl_term",
    "log_linear",
    "measure",
    "opsm",
    "outside",
    "policy_loss",
    "ratio",
    "raw_weights",
    "taught_advantages",
    "topk_reverse_kl",
    "veto",
    "with_rest",
]
