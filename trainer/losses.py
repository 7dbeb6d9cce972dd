"""Losses as pure functions of tokens.

Shapes: N are the sampled tokens of a micro-batch, all samples end to end, V the vocabulary.
Log-probabilities are natural logs at the sampling temperature. Three policies: behaviour sampled
the tokens, proximal is the one the step starts from, current is being changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import LossSettings

#: Bound on exponents: e^20 is far beyond every clip, and finite in every dtype.
EXPONENT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a loss sees of a micro-batch; every field [N].

    `current`, `entropy` and `kl` carry gradients. `reference` and `kl` (exact, to the reference)
    are None where nobody asked for them.
    """

    current: Tensor
    proximal: Tensor
    behaviour: Tensor
    advantages: Tensor
    entropy: Tensor
    reference: Tensor | None = None
    kl: Tensor | None = None


TokenLoss = Callable[[Tokens], Tensor]


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """exp(numerator - denominator) [N], the exponent bounded."""
    return torch.exp((numerator - denominator).clamp(-EXPONENT, EXPONENT))


def importance(proximal: Tensor, behaviour: Tensor, cap: float) -> Tensor:
    """min(e^(proximal - behaviour), cap) [N], detached: corrects for who sampled the tokens."""
    return ratio(proximal, behaviour).clamp(max=cap).detach()


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


def kl_term(settings: LossSettings, tokens: Tokens) -> Tensor | None:
    """The KL to the reference [N] by the configured estimator; None where it has no weight."""
    if not settings.kl_coef:
        return None
    if settings.kl == "exact":
        return tokens.kl
    assert tokens.reference is not None
    return kl_estimate(settings.kl, tokens.current, tokens.reference)


def policy_loss(settings: LossSettings, samples: int) -> TokenLoss:
    """The loss of a step of `samples` samples; sums over micro-batches give the whole.

    Sum over tokens of w * clipped + c * KL, over samples * L_ref. The denominator is constant:
    a mean over each reply would make long bad replies cheap.
    """
    denominator = float(samples * settings.reference_length)

    def loss(tokens: Tokens) -> Tensor:
        surrogate = clipped(
            tokens.current,
            tokens.proximal,
            tokens.advantages,
            low=settings.clip_low,
            high=settings.clip_high,
            dual=settings.dual_clip,
        )
        weight = importance(tokens.proximal, tokens.behaviour, settings.importance_cap)
        total = (weight * surrogate).sum()
        divergence = kl_term(settings, tokens)
        if divergence is not None:
            total = total + settings.kl_coef * divergence.sum()
        return total / denominator

    return loss


def measure(settings: LossSettings, tokens: Tokens) -> dict[str, float]:
    """The metrics of a whole step, train/rollout log-probability difference first.

    `ess` is the effective sample size (Σw)² / Σw² as a share of the tokens, with w the importance
    weights before the cap.
    """
    if not tokens.current.numel():
        return {"tokens": 0.0}
    difference = (tokens.proximal - tokens.behaviour).abs()
    weights = ratio(tokens.proximal, tokens.behaviour)
    rho = ratio(tokens.current, tokens.proximal)
    gain = tokens.advantages > 0
    outside = (gain & (rho > 1 + settings.clip_high)) | (
        (tokens.advantages < 0) & (rho < 1 - settings.clip_low)
    )
    values = {
        "logprob_diff_mean": difference.mean(),
        "logprob_diff_max": difference.max(),
        "importance_mean": weights.mean(),
        "importance_max": weights.max(),
        "importance_capped": (weights > settings.importance_cap).float().mean(),
        "ratio_mean": rho.mean(),
        "ratio_max": rho.max(),
        "clip_fraction": outside.float().mean(),
        "ess": weights.sum().square() / weights.square().sum() / weights.numel(),
        "entropy": tokens.entropy.mean(),
        "nll": -tokens.current.mean(),
    }
    if tokens.kl is not None:
        values["kl"] = tokens.kl.mean()
    if tokens.reference is not None:
        values["kl_k3"] = kl_estimate("k3", tokens.current, tokens.reference).mean()
    return {"tokens": float(tokens.current.numel())} | {
        name: float(value.detach()) for name, value in values.items()
    }
