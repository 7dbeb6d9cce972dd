"""From scores to advantages, by the configured method (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.records import TrainingSample
from trainer.config import CreditSettings
from trainer.credit.binary import binary
from trainer.credit.discount import returns
from trainer.credit.group import grouped
from trainer.credit.running import Baseline


@dataclass(frozen=True, slots=True)
class Credit:
    """`advantages` [n] by sample, weights included, and the baseline for the next batch.

    `taught` [n] is what the teacher of each sample counts, None where none is asked. `flat_groups`
    are groups of equal scores, which train nothing; `held` is the share of the positive advantage
    that was taken from rules that gave too much of it.
    """

    advantages: tuple[float, ...]
    baseline: Baseline
    flat_groups: int = 0
    held: float = 0.0
    taught: tuple[float, ...] | None = None


def assign(
    samples: Sequence[TrainingSample], baseline: Baseline, settings: CreditSettings
) -> Credit:
    """Advantages times weights: the sample's own, `negative_weight` below a score of 0.

    With `method: grpo`, samples that share a task are compared with each other; one alone is
    compared with what was to be expected, as with `method: binary`. With `opd` scores count
    nothing, with `combined` as with `binary`, times `w_rl`.
    """
    own = returns(samples, settings.discount)
    gains: list[float | None] = [None] * len(samples)
    flat = 0
    if settings.method == "grpo":
        # With a discount a verdict may be worth 0; a score of 0 is none, and in no mean.
        found = grouped(
            own,
            [sample.group if sample.score else None for sample in samples],
            settings.against,
        )
        gains, flat = list(found.advantages), found.flat
    weighed = []
    alone = binary(samples, own, baseline, settings)
    counts = {"opd": 0.0, "combined": settings.w_rl}.get(settings.method, 1.0)
    for sample, single, group in zip(samples, alone, gains, strict=True):
        weight = counts * sample.weight * (settings.negative_weight if sample.score < 0 else 1.0)
        weighed.append(weight * (single if group is None else group))
    shares = rule_shares(samples, settings.rule_share)
    advantages = tuple(gain * share for gain, share in zip(weighed, shares, strict=True))
    positive = sum(gain for gain, one in zip(weighed, samples, strict=True) if one.score > 0)
    left = sum(gain for gain, one in zip(advantages, samples, strict=True) if one.score > 0)
    return Credit(
        advantages,
        baseline.after(samples, own, settings),
        flat,
        1 - left / positive if positive > 0 else 0.0,
        taught(samples, settings),
    )


def taught(samples: Sequence[TrainingSample], settings: CreditSettings) -> tuple[float, ...] | None:
    """What the teacher of each sample counts [n]: 0 without a hint; None by other methods."""
    if not settings.taught:
        return None
    return tuple(
        settings.w_opd * sample.weight if sample.teaching is not None else 0.0 for sample in samples
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
