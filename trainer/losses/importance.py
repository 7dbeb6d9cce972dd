"""Importance weights w = proximal / behaviour: who sampled the tokens is not who is trained.

Levels: `token` weighs each token by its own ratio; `sequence` all tokens of a sample by the
product of theirs, unbiased for a whole reply but of a variance that grows with its length (1000
tokens at 1.01 are 20,959); `geometric` by the mean ratio, biased and calm. Actions: `truncate`
bounds a weight from above and below, `mask` sets one outside the bounds to 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trainer.losses.tokens import bounded_exp, means, sums

Level = Literal["token", "sequence", "geometric"]
Action = Literal["truncate", "mask", "none"]


def raw_weights(proximal: Tensor, behaviour: Tensor, samples: Tensor, level: Level) -> Tensor:
    """e^(proximal - behaviour) [N] at a level, detached, before any bound."""
    log = (proximal - behaviour).detach()
    if level == "sequence":
        log = sums(log, samples)
    elif level == "geometric":
        log = means(log, samples)
    return bounded_exp(log)


def bounded(weights: Tensor, action: Action, *, floor: float, cap: float) -> Tensor:
    """Weights [N] held to [floor, cap] by an action; `none` leaves every token weight 1."""
    if action == "none":
        return torch.ones_like(weights)
    if action == "truncate":
        return weights.clamp(floor, cap)
    return torch.where((weights >= floor) & (weights <= cap), weights, torch.zeros_like(weights))


def effective_share(weights: Tensor) -> Tensor:
    """The effective sample size (Σw)² / Σw² as a share of N (a scalar)."""
    return weights.sum().square() / weights.square().sum() / weights.numel()
