"""From scores to advantages, by the configured method (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.records import TrainingSample
from trainer.config import CreditSettings
from trainer.credit.binary import binary
from trainer.credit.group import grouped
from trainer.credit.running import Baseline


@dataclass(frozen=True, slots=True)
class Credit:
    """`advantages` [n] by sample, weights included, and the baseline for the next batch.

    `flat_groups` are groups of equal scores, which train nothing; `held` is the share of the
    positive advantage that was taken from rules that gave too much of it.
    """

    advantages: tuple[float, ...]
    baseline: Baseline
    flat_groups: int = 0
    held: float = 0.0


def assign(
    samples: Sequence[TrainingSample], baseline: Baseline, settings: CreditSettings
) -> Credit:
    """Advantages times weights: the sample's own, `negative_weight` below a score of 0.

    With `method: grpo`, samples that share a request are compared with each other; one alone is
    compared with what was to be expected, as with `method: binary`.
    """
    gains: list[float | None] = [None] * len(samples)
    flat = 0
    if settings.method == "grpo":
        found = grouped(
            [sample.score for sample in samples],
            [sample.group for sample in samples],
            settings.against,
        )
        gains, flat = list(found.advantages), found.flat
    weighed = []
    for sample, own, group in zip(samples, binary(samples, baseline, settings), gains, strict=True):
        weight = sample.weight * (settings.negative_weight if sample.score < 0 else 1.0)
        weighed.append(weight * (own if group is None else group))
    shares = rule_shares(samples, settings.rule_share)
    advantages = tuple(gain * share for gain, share in zip(weighed, shares, strict=True))
    positive = sum(gain for gain, one in zip(weighed, samples, strict=True) if one.score > 0)
    left = sum(gain for gain, one in zip(advantages, samples, strict=True) if one.score > 0)
    return Credit(
        advantages,
        baseline.after(samples, settings),
        flat,
        1 - left / positive if positive > 0 else 0.0,
    )


def rule_shares(samples: Sequence[TrainingSample], bound: float) -> list[float]:
    """What each positive sample counts [n], so that no rule gives more than `bound` of them.

    A rule's k positives beside o others count (bound / (1 - bound)) o together, and never less
    than one of them does: a rule that is alone in a batch counts as one sample. Verdicts that no
    rule gave, those of a judge that reads, are others to every rule.
    """
    counts: defaultdict[str | None, int] = defaultdict(int)
    for sample in samples:
        if sample.score > 0:
            counts[sample.rule] += 1
    total = sum(counts.values())
    factors = dict.fromkeys(counts, 1.0)
    if bound < 1:
        for rule, count in counts.items():
            if rule is not None and count > bound * total:
                factors[rule] = min(1.0, max(1.0, bound / (1 - bound) * (total - count)) / count)
    return [factors[sample.rule] if sample.score > 0 else 1.0 for sample in samples]
