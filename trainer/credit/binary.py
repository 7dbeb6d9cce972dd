"""Binary RL: each reply against what was to be expected of it (pure).

A = score - baseline, the baseline being part mean of the other samples of the batch (leave-one-out,
so that a score is never compared with itself), part running mean of what the same user scored
before. An all-negative batch of a user who is never content therefore pushes little. Before
anything was seen, 0 is expected: a first batch that is all negative pushes by half, neither by
the raw scores nor, as normalisation would have it, not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.records import TrainingSample
from trainer.config import CreditSettings
from trainer.credit.running import Baseline


def binary(
    samples: Sequence[TrainingSample],
    gains: Sequence[float],
    baseline: Baseline,
    settings: CreditSettings,
) -> list[float]:
    """A_i = s_i - (m LOO_i + (1 - m) running_i) [n]; running_i alone where there are no others.

    s_i are the `gains` [n]: scores, or returns where later turns count too. LOO_i is the mean of
    the others, m is `leave_one_out`. A score of 0 is no verdict: it has advantage 0 and counts in
    no mean.
    """
    share = settings.leave_one_out
    scored = [gain for sample, gain in zip(samples, gains, strict=True) if sample.score]
    total, n = sum(scored), len(scored)
    advantages = []
    for sample, gain in zip(samples, gains, strict=True):
        past = baseline.expected(sample.user, settings.user_prior)
        others = (total - gain) / (n - 1) if n > 1 else past
        expected = share * others + (1 - share) * past
        advantages.append(gain - expected if sample.score else 0.0)
    return advantages
