"""What is measured of a step: whether the data still are what the policy would sample."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.config import LossSettings
from trainer.losses.importance import effective_share, raw_weights
from trainer.losses.kl import kl_estimate
from trainer.losses.masks import opsm, veto
from trainer.losses.policy import outside
from trainer.losses.step import credited, kept, proximal_of
from trainer.losses.tokens import Tokens, bounded_exp, means, ratio


@torch.no_grad()
def measure(settings: LossSettings, tokens: Tokens) -> dict[str, float]:
    """The metrics of a whole step, train/rollout log-probability difference first.

    Means are over tokens. `importance` are the weights proximal / behaviour before any bound,
    `ess` their effective sample size as a share of the tokens, `ratio` current / proximal.
    `masked` is the share of tokens that the sequence masks left out, `opsm` and `vetoed` those of
    each mask. Divergences are in nats.
    """
    if not tokens.current.numel():
        return {"tokens": 0.0}
    values = _mismatch(settings, tokens) | _step(settings, tokens) | _teacher(settings, tokens)
    return {name: float(value) for name, value in values.items()} | {
        "tokens": float(tokens.current.numel())
    }


def _mismatch(settings: LossSettings, tokens: Tokens) -> dict[str, Tensor]:
    """How far the policy that sampled is from the one that the step starts from.

    `mismatch_kl` is KL(behaviour || proximal) by k3, and that of what the masks keep and leave
    out. chi2 = E[w^2] - 1 by token and by sample; `perplexity_ratio` is that of the trainer over
    that of the engine, a mean over samples.
    """
    proximal, behaviour = proximal_of(settings, tokens), tokens.behaviour
    difference = (proximal - behaviour).abs()
    raw = raw_weights(proximal, behaviour, tokens.samples, settings.importance_level)
    token = raw_weights(proximal, behaviour, tokens.samples, "token")
    gap = kl_estimate("k3", behaviour, proximal)
    keep = kept(settings, tokens, proximal) > 0
    # One entry a sample: the sum of each is spread over its tokens.
    first = _first(tokens.samples)
    whole = raw_weights(proximal, behaviour, tokens.samples, "sequence")[first]
    perplexity = bounded_exp(means(behaviour - proximal, tokens.samples))[first]
    return {
        "logprob_diff_mean": difference.mean(),
        "logprob_diff_max": difference.max(),
        "mismatch_kl": gap.mean(),
        "mismatch_kl_kept": _mean(gap[keep]),
        "mismatch_kl_masked": _mean(gap[~keep]),
        "perplexity_ratio": perplexity.mean(),
        "chi2_token": token.square().mean() - 1,
        "chi2_sequence": whole.square().mean() - 1,
        "importance_mean": raw.mean(),
        "importance_min": raw.min(),
        "importance_max": raw.max(),
        "importance_capped": (raw > settings.importance_cap).float().mean(),
        "importance_floored": (raw < settings.importance_floor).float().mean(),
        "importance_away": (raw - 1).abs().mean(),
        "ess": effective_share(raw),
        "lag_token_mean": tokens.lags.mean(),
    }


def _step(settings: LossSettings, tokens: Tokens) -> dict[str, Tensor]:
    """How far the current policy is from the proximal one and from the reference."""
    proximal, advantages = proximal_of(settings, tokens), credited(settings, tokens)
    rho = ratio(tokens.current, proximal)
    clip = outside(
        tokens.current, proximal, advantages, low=settings.clip_low, high=settings.clip_high
    )
    values = {
        "ratio_mean": rho.mean(),
        "ratio_min": rho.min(),
        "ratio_max": rho.max(),
        "clip_fraction": clip.float().mean(),
        "ppo_kl": (proximal - tokens.current).mean(),
        "masked": 1 - kept(settings, tokens, proximal).mean(),
        "entropy": tokens.entropy.mean(),
        "nll": -tokens.current.mean(),
        "advantage_token_mean": advantages.mean(),
        "advantage_token_abs": advantages.abs().mean(),
    }
    if settings.opsm_delta is not None:
        left = ~opsm(
            tokens.current, tokens.behaviour, advantages, tokens.samples, settings.opsm_delta
        )
        values["opsm"] = left.float().mean()
    if settings.veto is not None:
        left = ~veto(proximal, tokens.behaviour, tokens.samples, settings.veto)
        values["vetoed"] = left.float().mean()
    if tokens.kl is not None:
        values["kl"] = tokens.kl.mean()
    if tokens.reference is not None:
        values["kl_k3"] = kl_estimate("k3", tokens.current, tokens.reference).mean()
    return values


def _teacher(settings: LossSettings, tokens: Tokens) -> dict[str, Tensor]:
    """Of the tokens that a teacher scored; nothing where none was.

    `opd_reverse_kl` is the mean of student - teacher, `opd_clipped` the share beyond the bound.
    """
    if tokens.teacher is None or tokens.student is None:
        return {}
    assert tokens.taught is not None
    assert tokens.distils is not None
    scored = (tokens.taught != 0) | (tokens.distils != 0)
    difference = (tokens.student - tokens.teacher)[scored]
    values = {
        "taught": scored.float().mean(),
        "opd_reverse_kl": _mean(difference),
        "opd_clipped": _mean((difference.abs() > settings.opd_clip).float()),
    }
    if tokens.distilled is not None:
        values["distilled_kl"] = _mean(tokens.distilled[tokens.distils != 0])
    return values


def _mean(values: Tensor) -> Tensor:
    return values.mean() if values.numel() else values.new_zeros(())


def _first(samples: Tensor) -> Tensor:
    """Indices of one token of each sample."""
    known, place = torch.unique(samples, return_inverse=True)
    places = torch.arange(len(samples), device=samples.device)
    first: Tensor = places.new_zeros(len(known)).index_copy(0, place.flip(0), places.flip(0))
    return first
