"""Divergences between policies."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.losses.tokens import EXPONENT, bounded_exp


def kl_exact(log_policy: Tensor, log_reference: Tensor) -> Tensor:
    """KL(policy || reference) [N] from log-probabilities [N, V] of the whole vocabulary."""
    return (log_policy.exp() * (log_policy - log_reference)).sum(-1)


def kl_estimate(kind: str, current: Tensor, reference: Tensor) -> Tensor:
    """KL(current || reference) [N] from the sampled tokens alone (Schulman's k1, k2, k3).

    With d = current - reference: k1 = d, k2 = d²/2, k3 = e^-d - 1 + d, bounded by 10.
    """
    difference = current - reference.detach()
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference.square() / 2
    if kind == "k3":
        back = torch.exp((-difference).clamp(-EXPONENT, EXPONENT))
        return (back - 1 + difference).clamp(-10, 10)
    raise ValueError(f"unknown KL estimator {kind!r}")


def kl_moved(new: Tensor, old: Tensor) -> Tensor:
    """KL(new || old) [N] from tokens that the old policy sampled: r ln r - r + 1, r = new / old.

    Its mean under the old policy is the divergence; no token gives less than 0.
    """
    log = (new - old).clamp(-EXPONENT, EXPONENT)
    rho = bounded_exp(log)
    return rho * log - rho + 1


def in_reward(
    advantages: Tensor, kind: str, coefficient: float, current: Tensor, reference: Tensor
) -> Tensor:
    """Advantages [N] less coefficient * KL estimate of each sampled token, detached.

    Only k1 gives the gradient of the divergence this way: the score function times k2 or k3 is
    that of something else, and an exact divergence does not depend on the token at all.
    """
    return advantages - coefficient * kl_estimate(kind, current, reference).detach()
