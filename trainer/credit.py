"""Advantages: how much better a reply scored than was to be expected (pure).

Binary RL on groups of one: A = score - baseline, the baseline being part mean of the other
samples of the batch (leave-one-out, so that a score is never compared with itself), part running
mean of what the same user scored before. An all-negative batch of a user who is never content
therefore pushes little, and no normalisation turns a lone score into 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.records import TrainingSample
from trainer.config import CreditSettings


@dataclass(frozen=True, slots=True)
class Running:
    """A mean that forgets: plain until `horizon` values, exponential after."""

    mean: float = 0.0
    count: int = 0

    def plus(self, value: float, horizon: int) -> Running:
        count = min(self.count + 1, horizon)
        return Running(self.mean + (value - self.mean) / count, count)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Scores seen in earlier batches; part of every checkpoint. `users`: least recent first."""

    overall: Running = Running()
    users: Mapping[str, Running] = field(default_factory=dict)

    def expected(self, user: str, prior: float) -> float | None:
        """The mean of a user, drawn toward the overall mean by `prior` scores; None unknown."""
        if not self.overall.count:
            return None
        own = self.users.get(user, Running())
        total = own.count + prior
        if not total:
            return self.overall.mean
        return (own.count * own.mean + prior * self.overall.mean) / total

    def after(self, samples: Sequence[TrainingSample], settings: CreditSettings) -> Baseline:
        """The baseline once a batch has been seen."""
        overall, users = self.overall, dict(self.users)
        for sample in samples:
            overall = overall.plus(sample.score, settings.horizon)
            own = users.pop(sample.user, Running())
            users[sample.user] = own.plus(sample.score, settings.horizon)
        surplus = len(users) - settings.max_users
        kept = dict(list(users.items())[surplus:]) if surplus > 0 else users
        return Baseline(overall, kept)

    def dump(self) -> dict[str, Any]:
        return {
            "overall": [self.overall.mean, self.overall.count],
            "users": [[name, own.mean, own.count] for name, own in self.users.items()],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Baseline:
        mean, count = state["overall"]
        users = {name: Running(float(m), int(n)) for name, m, n in state["users"]}
        return cls(Running(float(mean), int(count)), users)


@dataclass(frozen=True, slots=True)
class Credit:
    """`advantages` [n] by sample, weights included, and the baseline for the next batch."""

    advantages: tuple[float, ...]
    baseline: Baseline


def binary(
    samples: Sequence[TrainingSample], baseline: Baseline, settings: CreditSettings
) -> Credit:
    """A_i = w_i (s_i - (m LOO_i + (1 - m) running_i)); whichever half is unknown is left out.

    LOO_i is the mean score of the others, m is `leave_one_out`. w_i is the sample's weight, times
    `negative_weight` below a score of 0. A score of 0 has advantage 0.
    """
    total, n = sum(sample.score for sample in samples), len(samples)
    advantages = []
    for sample in samples:
        others = (total - sample.score) / (n - 1) if n > 1 else None
        past = baseline.expected(sample.user, settings.user_prior)
        if others is None or past is None:
            expected = others if past is None else past
        else:
            expected = settings.leave_one_out * others + (1 - settings.leave_one_out) * past
        weight = sample.weight * (settings.negative_weight if sample.score < 0 else 1.0)
        known = expected if expected is not None else 0.0
        advantages.append(weight * (sample.score - known) if sample.score else 0.0)
    return Credit(tuple(advantages), baseline.after(samples, settings))
