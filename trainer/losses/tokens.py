"""What a loss sees, and the arithmetic that all of them share.

Shapes, here and in the modules beside: N are the sampled tokens of a micro-batch, all samples end
to end, V the vocabulary. Log-probabilities are natural logs at the sampling temperature. Three
policies: behaviour sampled the tokens, proximal is the one the step starts from, current is being
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Bound on exponents: e^20 is far beyond every clip, and finite in every dtype.
EXPONENT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A micro-batch; every field [N].

    `current`, `entropy`, `kl` and `distilled` carry gradients. `samples` is the sample of each
    token; a sample is never split over micro-batches. `lags` are the versions between the policy
    that sampled a token and the one the step starts from. `reference` and `kl` (exact, to the
    reference) are None where nobody asked for them.

    Where samples were taught, else None: `teacher` and `student` (proximal) are log-probabilities
    at temperature 1, `taught` is what their difference counts, `distilled` the divergence over the
    teacher's K + 1 bins and `distils` what that counts; 0 where a token has none.
    """

    current: Tensor
    proximal: Tensor
    behaviour: Tensor
    advantages: Tensor
    entropy: Tensor
    samples: Tensor
    lags: Tensor
    reference: Tensor | None = None
    kl: Tensor | None = None
    teacher: Tensor | None = None
    student: Tensor | None = None
    taught: Tensor | None = None
    distilled: Tensor | None = None
    distils: Tensor | None = None

    def detached(self) -> Tokens:
        """On the CPU, without gradients."""
        fields: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value.detach().cpu()
            for name in self.__slots__
        }
        return Tokens(**fields)


@dataclass(frozen=True, slots=True)
class Size:
    """What a loss is divided by: counted before any token or sample is rejected."""

    samples: int
    tokens: int


TokenLoss = Callable[[Tokens], Tensor]


def joined(parts: Sequence[Tokens]) -> Tokens:
    """Micro-batches end to end."""
    fields: dict[str, Any] = {}
    for name in Tokens.__slots__:
        column = [getattr(part, name) for part in parts]
        fields[name] = None if column[0] is None else torch.cat(column)
    return Tokens(**fields)


def bounded_exp(exponent: Tensor) -> Tensor:
    """e^exponent, the exponent bounded."""
    return torch.exp(exponent.clamp(-EXPONENT, EXPONENT))


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """exp(numerator - denominator) [N], the exponent bounded."""
    return bounded_exp(numerator - denominator)


def lengths(samples: Tensor) -> Tensor:
    """Tokens of the sample that each token belongs to [N], float."""
    return sums(torch.ones(len(samples), device=samples.device), samples)


def sums(values: Tensor, samples: Tensor) -> Tensor:
    """The sum of `values` [N] over the sample of each token [N]."""
    known, place = torch.unique(samples, return_inverse=True)
    total: Tensor = values.new_zeros(len(known)).index_add(0, place, values)[place]
    return total


def means(values: Tensor, samples: Tensor) -> Tensor:
    """The mean of `values` [N] over the sample of each token [N]."""
    return sums(values, samples) / lengths(samples).to(values.dtype)
