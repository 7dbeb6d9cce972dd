"""From losses of tokens to one number. Sums over micro-batches give that of the whole step.

Every denominator is known before a token is rejected. `constant` is the default: a mean over each
reply makes a token of a long one count less, so negatives favour longer replies.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from trainer.losses.tokens import Size, lengths

Aggregate = Literal["constant", "token_mean", "sequence_mean"]


def aggregate(
    losses: Tensor, samples: Tensor, kind: Aggregate, size: Size, reference_length: int
) -> Tensor:
    """A scalar from `losses` [N].

    constant: Σ / (B L_ref). token_mean: Σ / all tokens of the step. sequence_mean: the sum over
    samples of Σ / own length, / B.
    """
    if kind == "constant":
        return losses.sum() / (size.samples * reference_length)
    if kind == "token_mean":
        return losses.sum() / size.tokens
    return (losses / lengths(samples).to(losses.dtype)).sum() / size.samples
