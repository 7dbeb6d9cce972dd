"""Distillation over a teacher's or student's most likely tokens, the rest in one bin."""

from __future__ import annotations

import torch
from torch import Tensor

#: The chosen tokens' mass is at most this far from 1, in nats, so that the rest has a logarithm.
_REST = -1e-7


def with_rest(log_chosen: Tensor) -> Tensor:
    """Log-probabilities [N, K] of chosen tokens to those of K + 1 bins [N, K + 1].

    The last bin holds all other tokens: ln(1 - Σ p) = ln(-expm1(ln Σ p)).
    """
    mass = torch.logsumexp(log_chosen, -1, keepdim=True).clamp(max=_REST)
    return torch.cat([log_chosen, torch.log(-torch.expm1(mass))], -1)


def topk_reverse_kl(log_student: Tensor, log_teacher: Tensor) -> Tensor:
    """KL(student || teacher) [N] over K + 1 bins from log-probabilities [N, K] of the same tokens.

    A lower bound of the divergence over the whole vocabulary; both at temperature 1.
    """
    student, teacher = with_rest(log_student), with_rest(log_teacher.detach())
    return (student.exp() * (student - teacher)).sum(-1)
