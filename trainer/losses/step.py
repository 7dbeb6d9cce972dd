"""The loss of a step, put together from its parts."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.config import LossSettings
from trainer.losses.aggregate import aggregate
from trainer.losses.distillation import taught_advantages
from trainer.losses.entropy import bonus
from trainer.losses.importance import bounded, raw_weights
from trainer.losses.kl import in_reward, kl_estimate
from trainer.losses.masks import opsm, veto
from trainer.losses.policy import clipped, log_linear
from trainer.losses.tokens import Size, TokenLoss, Tokens


def policy_loss(settings: LossSettings, size: Size) -> TokenLoss:
    """The loss of a step of `size`; sums over micro-batches give the whole.

    Σ over tokens of kept * w * clipped + c KL - e entropy + the teacher's divergence, over the
    denominator that `settings.aggregate` names.
    """

    def loss(tokens: Tokens) -> Tensor:
        proximal = proximal_of(settings, tokens)
        advantages = credited(settings, tokens)
        if settings.kl_coef and settings.kl_place == "reward":
            assert tokens.reference is not None
            advantages = in_reward(
                advantages, settings.kl, settings.kl_coef, proximal, tokens.reference
            )
        surrogate = clipped(
            tokens.current,
            proximal,
            advantages,
            low=settings.clip_low,
            high=settings.clip_high,
            dual=settings.dual_clip,
        )
        total = weights(settings, tokens, proximal) * surrogate
        divergence = kl_term(settings, tokens)
        if divergence is not None:
            total = total + settings.kl_coef * divergence
        if tokens.distilled is not None and tokens.distils is not None:
            total = total + tokens.distils * tokens.distilled
        if settings.entropy_coef:
            total = total + bonus(tokens.entropy, settings.entropy_coef)
        return aggregate(total, tokens.samples, settings.aggregate, size, settings.reference_length)

    return loss


def proximal_of(settings: LossSettings, tokens: Tokens) -> Tensor:
    """The proximal log-probabilities [N], detached."""
    if settings.proximal == "log_linear":
        return log_linear(tokens.current, tokens.behaviour, tokens.lags)
    return tokens.proximal.detach()


def credited(settings: LossSettings, tokens: Tokens) -> Tensor:
    """Advantages [N] of the scores and of what the teacher says of each token."""
    if tokens.teacher is None:
        return tokens.advantages
    assert tokens.student is not None
    assert tokens.taught is not None
    return taught_advantages(
        tokens.advantages, tokens.taught, tokens.teacher, tokens.student, settings.opd_clip
    )


def weights(settings: LossSettings, tokens: Tokens, proximal: Tensor) -> Tensor:
    """What the surrogate of each token counts [N], detached: 0 where it is rejected."""
    raw = raw_weights(proximal, tokens.behaviour, tokens.samples, settings.importance_level)
    weight = bounded(
        raw, settings.importance, floor=settings.importance_floor, cap=settings.importance_cap
    )
    return weight * kept(settings, tokens, proximal)


def kept(settings: LossSettings, tokens: Tokens, proximal: Tensor) -> Tensor:
    """1 where both sequence masks keep a token, else 0 [N]."""
    keep = torch.ones_like(tokens.samples, dtype=torch.bool)
    if settings.opsm_delta is not None:
        keep &= opsm(
            tokens.current,
            tokens.behaviour,
            credited(settings, tokens),
            tokens.samples,
            settings.opsm_delta,
        )
    if settings.veto is not None:
        keep &= veto(proximal, tokens.behaviour, tokens.samples, settings.veto)
    return keep.to(tokens.current.dtype)


def kl_term(settings: LossSettings, tokens: Tokens) -> Tensor | None:
    """The KL to the reference [N] in the loss; None where it has no weight there."""
    if not settings.kl_coef or settings.kl_place == "reward":
        return None
    if settings.kl == "exact":
        return tokens.kl
    assert tokens.reference is not None
    return kl_estimate(settings.kl, tokens.current, tokens.reference)
