"""How undecided a policy is."""

from __future__ import annotations

from torch import Tensor


def entropy(log_policy: Tensor) -> Tensor:
    """-Σ p ln p [N] from log-probabilities [N, V] of the whole vocabulary, in nats."""
    return -(log_policy.exp() * log_policy).sum(-1)


def bonus(entropies: Tensor, coefficient: float) -> Tensor:
    """What is added to the loss [N]: less where the policy is undecided."""
    return -coefficient * entropies
