"""Binary RL: each reply against what was to be expected of it (pure).

A = score - baseline, the baseline being part mean of the other samples of the batch (leave-one-out,
so that a score is never compared with itself), part running mean of what the same user scored
before. An all-negative batch of a user who is never content therefore pushes little, and no
normalisation turns a lone score into 0.
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
    """A_i = s_i - (m LOO_i + (1 - m) running_i) [n]; whichever half is unknown is left out.

    s_i are the `gains` [n]: scores, or returns where later turns count too. LOO_i is the mean of
    the others, m is `leave_one_out`. A score of 0 is no verdict: it has advantage 0 and counts in
    no mean.
    """
    scored = [gain for sample, gain in zip(samples, gains, strict=True) if sample.score]
    total, n = sum(scored), len(scored)
    advantages = []
    for sample, gain in zip(samples, gains, strict=True):
        others = (total - gain) / (n - 1) if n > 1 else None
        past = baseline.expected(sample.user, settings.user_prior)
        if others is None or past is None:
            expected = others if past is None else past
        else:
            expected = settings.leave_one_out * others + (1 - settings.leave_one_out) * past
        known = expected if expected is not None else 0.0
        advantages.append(gain - known if sample.score else 0.0)
    return advantages
