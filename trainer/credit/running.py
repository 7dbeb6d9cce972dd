"""What was to be expected: running means of the scores of earlier batches (pure)."""

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

    def expected(self, user: str, prior: float) -> float:
        """The mean of a user, drawn toward the overall mean by `prior` scores; 0 at first."""
        own = self.users.get(user, Running())
        total = own.count + prior
        if not total:
            return self.overall.mean
        return (own.count * own.mean + prior * self.overall.mean) / total

    def after(
        self,
        samples: Sequence[TrainingSample],
        gains: Sequence[float],
        settings: CreditSettings,
    ) -> Baseline:
        """The baseline once a batch has been seen; a score of 0 is no verdict."""
        overall, users = self.overall, dict(self.users)
        for sample, gain in zip(samples, gains, strict=True):
            if not sample.score:
                continue
            overall = overall.plus(gain, settings.horizon)
            own = users.pop(sample.user, Running())
            users[sample.user] = own.plus(gain, settings.horizon)
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
