"""GRPO: replies to the same request against each other (pure)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

Against = Literal["mean", "std", "leave_one_out"]

#: Added to a standard deviation, which is 0 in no group that is kept.
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Groups:
    """`advantages` [n], None where there is no group to be compared with.

    `flat` counts the groups in which all scores are equal: they say nothing, and their samples
    have advantage 0.
    """

    advantages: tuple[float | None, ...]
    flat: int


def grouped(scores: Sequence[float], keys: Sequence[Hashable | None], against: Against) -> Groups:
    """Compare each score [n] with those of the same key [n]; a key of None is no group.

    mean: s - mean. std: that over the group's standard deviation (n - 1). leave_one_out: s - mean
    of the others. Who has no verdict is in no group.
    """
    members: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        if key is not None:
            members[key].append(index)
    advantages: list[float | None] = [None] * len(scores)
    flat = 0
    for group in members.values():
        if len(group) < 2:
            continue
        told = [scores[index] for index in group]
        flat += len(set(told)) == 1
        for index, gain in zip(group, _compared(told, against), strict=True):
            advantages[index] = gain
    return Groups(tuple(advantages), flat)


def _compared(scores: Sequence[float], against: Against) -> list[float]:
    """Advantages [k] of a group of k >= 2."""
    if len(set(scores)) == 1:
        return [0.0] * len(scores)
    mean, k = fmean(scores), len(scores)
    if against == "leave_one_out":
        return [(score - mean) * k / (k - 1) for score in scores]
    if against == "mean":
        return [score - mean for score in scores]
    deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / (k - 1))
    return [(score - mean) / (deviation + _EPSILON) for score in scores]
