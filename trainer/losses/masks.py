"""Which samples are left out of the surrogate: bool [N], True where a token is kept.

A mask takes whole samples. What it leaves out stays in the denominator, so that a batch of which
little is kept makes a small step, not a loud one.
"""

from __future__ import annotations

import math

from torch import Tensor

from trainer.losses.tokens import means, sums


def opsm(
    current: Tensor, behaviour: Tensor, advantages: Tensor, samples: Tensor, delta: float
) -> Tensor:
    """Off-policy sequence masking: a disliked sample that the policy has already moved away from.

    Leaves out samples of mean advantage < 0 whose mean of behaviour - current exceeds `delta`.
    "Old" is the policy that sampled, not one recomputed: with one minibatch that one never differs.
    """
    away = means((behaviour - current).detach(), samples) > delta
    return ~(away & (means(advantages, samples) < 0))


def veto(proximal: Tensor, behaviour: Tensor, samples: Tensor, threshold: float) -> Tensor:
    """Leaves out samples with a token whose proximal / behaviour is below `threshold`.

    Such a token was hardly possible under the policy that is trained: something else sampled it.
    """
    below = (proximal - behaviour).detach() < math.log(threshold)
    return sums(below.to(proximal.dtype), samples) == 0
