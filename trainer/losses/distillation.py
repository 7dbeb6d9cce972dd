"""Distillation: what a teacher that was given the hint says of each token.

Both sides at temperature 1, whatever was sampled at: engines score ids at that temperature, and
equal policies at different temperatures would differ. The student is the proximal policy.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: The chosen tokens' mass is at most this far from 1, in nats, so that the rest has a logarithm.
_REST = -1e-7

#: In place of -inf, whose products have no gradient; e^this is 0 too.
_NEVER = -1e4


def taught_advantages(
    advantages: Tensor, weight: Tensor, teacher: Tensor, student: Tensor, clip: float
) -> Tensor:
    """A + w (teacher - student) [N], the difference within ±clip, detached.

    `weight` [N] is 0 for tokens that no teacher scored: they keep their advantage.
    """
    difference = (teacher - student).detach().clamp(-clip, clip)
    return advantages + weight * difference


def with_rest(log_chosen: Tensor) -> Tensor:
    """Log-probabilities [N, K] of chosen tokens to those of K + 1 bins [N, K + 1].

    The last bin holds all other tokens: ln(1 - Σ p) = ln(-expm1(ln Σ p)).
    """
    mass = torch.logsumexp(log_chosen, -1, keepdim=True).clamp(max=_REST)
    return torch.cat([log_chosen, torch.log(-torch.expm1(mass))], -1)


def topk_reverse_kl(log_student: Tensor, log_teacher: Tensor) -> Tensor:
    """KL(student || teacher) [N] over K + 1 bins from log-probabilities [N, K] of the same tokens.

    A lower bound of the divergence over the whole vocabulary; both at temperature 1. Where the
    teacher's is -inf a row has no such token; one without any has divergence 0.
    """
    absent = torch.isneginf(log_teacher)
    student = with_rest(log_student.masked_fill(absent, _NEVER))
    teacher = with_rest(log_teacher.detach().masked_fill(absent, _NEVER))
    return (student.exp() * (student - teacher)).sum(-1)
