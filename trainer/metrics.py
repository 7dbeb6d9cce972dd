"""Training as Prometheus metrics, in a registry of the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: Versions between the policy that sampled and the one that is trained.
_LAGS = (0, 1, 2, 3, 4, 6, 8, 12, 16)

_DROPPED = "dropped_"


class Recorder(Protocol):
    """Who is told of steps; `lineage` is its id in hex."""

    def stepped(
        self, lineage: str, version: int, metrics: Mapping[str, float], lags: Sequence[int]
    ) -> None:
        """A step toward `version` was recorded."""
        ...

    def failed(self, lineage: str) -> None:
        """A step failed; no weight has changed."""
        ...


class TrainerMetrics:
    """Figures of the last step of each lineage, and counters since the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("lineage",)
        self.difference = Gauge(
            "nextstate_trainer_logprob_difference",
            "Mean distance of the trainer's log-probabilities from the engine's, in nats.",
            labels,
            registry=registry,
        )
        self.figures = Gauge(
            "nextstate_trainer_step",
            "Figures of the last step.",
            (*labels, "figure"),
            registry=registry,
        )
        self.lags = Histogram(
            "nextstate_trainer_lag",
            "Versions that samples were behind when they were trained on.",
            labels,
            buckets=_LAGS,
            registry=registry,
        )
        self.steps = Counter(
            "nextstate_trainer_steps", "Steps by outcome.", (*labels, "outcome"), registry=registry
        )
        self.samples = Counter(
            "nextstate_trainer_samples", "Samples trained on.", labels, registry=registry
        )
        self.dropped = Counter(
            "nextstate_trainer_dropped",
            "Samples given up before a step, by reason.",
            (*labels, "reason"),
            registry=registry,
        )
        self.version = Gauge(
            "nextstate_trainer_version", "The version trained last.", labels, registry=registry
        )
        self._shown: dict[str, set[str]] = {}

    def stepped(
        self, lineage: str, version: int, metrics: Mapping[str, float], lags: Sequence[int]
    ) -> None:
        for name in self._shown.get(lineage, set()) - metrics.keys():
            self.figures.remove(lineage, name)
        self._shown[lineage] = set(metrics)
        for name, value in metrics.items():
            self.figures.labels(lineage, name).set(value)
            if name.startswith(_DROPPED):
                self.dropped.labels(lineage, name.removeprefix(_DROPPED)).inc(value)
        self.difference.labels(lineage).set(metrics.get("logprob_diff_mean", 0.0))
        for lag in lags:
            self.lags.labels(lineage).observe(lag)
        self.steps.labels(lineage, "trained").inc()
        self.samples.labels(lineage).inc(len(lags))
        self.version.labels(lineage).set(version)

    def failed(self, lineage: str) -> None:
        self.steps.labels(lineage, "failed").inc()
