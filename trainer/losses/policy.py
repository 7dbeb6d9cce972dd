"""Surrogates of the policy gradient, and the proximal policy that they keep to.

Clips act only where current and proximal differ: with two or more minibatches a step, or with a
log-linear proximal policy on stale tokens. With one minibatch the ratio is 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.losses.tokens import ratio


def clipped(
    current: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    *,
    low: float,
    high: float,
    dual: float | None = None,
) -> Tensor:
    """max(-r A, -clip(r, 1 - low, 1 + high) A) [N] with r = e^(current - proximal).

    `dual` bounds the loss of a negative advantage by dual * |A| (dual-clip PPO).
    """
    rho = ratio(current, proximal.detach())
    loss = torch.maximum(-rho * advantages, -rho.clamp(1 - low, 1 + high) * advantages)
    if dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual * advantages), loss)
    return loss


def outside(
    current: Tensor, proximal: Tensor, advantages: Tensor, *, low: float, high: float
) -> Tensor:
    """Where the clip ends the gradient: bool [N]."""
    rho = ratio(current, proximal)
    return ((advantages > 0) & (rho > 1 + high)) | ((advantages < 0) & (rho < 1 - low))


def log_linear(current: Tensor, behaviour: Tensor, lags: Tensor) -> Tensor:
    """The proximal policy [N] without a forward pass of its own, detached.

    behaviour + a (current - behaviour), a = lag / (lag + 1): the step makes version v + 1 of
    version v, and v lies `lag` of lag + 1 versions along the way from the behaviour policy.
    """
    share = lags / (lags + 1)
    return (behaviour + share * (current - behaviour)).detach()
