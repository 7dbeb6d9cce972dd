"""Judging as Prometheus metrics, in a registry of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.records import Judgement
from gateway.telemetry import get_logger

_SECONDS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

log = get_logger(__name__)

#: What each moment has, by the names that the heartbeat gives it.
Report = Callable[[], Mapping[str, Any]]


class JudgeMetrics:
    """Counters of what was judged; told by `Health` as its recorder.

    `report` gives the heartbeat's detail; its figures become gauges when they are asked for.
    """

    def __init__(self, registry: CollectorRegistry, report: Report = dict) -> None:
        self.judgements = Counter(
            "nextstate_judge_judgements",
            "Judgements made, by who made them and the sign of the score.",
            ("judge", "rule", "score"),
            registry=registry,
        )
        self.seconds = Histogram(
            "nextstate_judge_seconds",
            "Time of one judgement.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.votes = Counter(
            "nextstate_judge_votes",
            "Votes of an LLM, by the question and what came of them.",
            ("kind", "outcome"),
            registry=registry,
        )
        self.tokens = Counter(
            "nextstate_judge_tokens", "Tokens of the endpoint.", ("kind",), registry=registry
        )
        self.usd = Counter("nextstate_judge_usd", "Cost by configured prices.", registry=registry)
        self.compared = Counter(
            "nextstate_judge_feedback_compared",
            "Turns with explicit feedback, judged again without it.",
            ("agrees",),
            registry=registry,
        )
        self.audits = Counter(
            "nextstate_judge_audits",
            "Turns that the independent judge judged again.",
            ("agrees",),
            registry=registry,
        )
        self.teachings = Counter(
            "nextstate_judge_teachings",
            "Turns with a hint that the teacher scored, or could not.",
            ("outcome",),
            registry=registry,
        )
        self.stale = Counter(
            "nextstate_judge_stale",
            "Turns not judged since no trainer would take them, by how late the user answered.",
            ("answered",),
            registry=registry,
        )
        registry.register(_Gauges(report))

    def skipped(self, delays: Mapping[str, int]) -> None:
        """Count what was too stale to be judged, by `delay`."""
        for name, count in delays.items():
            self.stale.labels(name.removeprefix("stale_")).inc(count)
        log.info("dropped", reason="stale", samples=sum(delays.values()), **delays)

    def judged(self, judgement: Judgement, seconds: float) -> None:
        self.judgements.labels(judgement.judge, judgement.rule or "", _sign(judgement.score)).inc()
        self.seconds.observe(seconds)
        for vote in judgement.votes:
            kind = str(vote.get("kind", ""))
            parsed = vote.get("score") if kind == "grade" else vote.get("improves")
            outcome = "error" if "error" in vote else "unparsed" if parsed is None else "parsed"
            self.votes.labels(kind, outcome).inc()
        usage = judgement.usage or {}
        self.tokens.labels("prompt").inc(usage.get("prompt_tokens", 0))
        self.tokens.labels("completion").inc(usage.get("completion_tokens", 0))
        self.usd.inc(usage.get("usd", 0.0))

    def checked(self, said: int, found: int) -> None:
        self.compared.labels("yes" if said == found else "no").inc()

    def audited(self, said: int, found: int) -> None:
        self.audits.labels("yes" if said == found else "no").inc()

    def taught(self, *, done: bool) -> None:
        self.teachings.labels("stored" if done else "failed").inc()


class _Gauges(Collector):
    """The window's figures, the alarms, and what the worker holds."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> Iterable[Metric]:
        detail = self._report()
        figures = GaugeMetricFamily(
            "nextstate_judge_window", "Figures of the judgements made last.", labels=("figure",)
        )
        for name, value in sorted(detail.get("health", {}).items()):
            if isinstance(value, int | float):
                figures.add_metric((name,), value)
        alarms = GaugeMetricFamily(
            "nextstate_judge_alarm", "1 where a figure is beyond its threshold.", labels=("figure",)
        )
        for name in detail.get("alarms", ()):
            alarms.add_metric((name,), 1)
        jobs = GaugeMetricFamily(
            "nextstate_judge_jobs", "Jobs of this worker since its start.", labels=("state",)
        )
        for name in ("claimed", "scored", "unscored", "failed", "dead", "lost", "in_hand"):
            if name in detail:
                jobs.add_metric((name,), detail[name])
        return [figures, alarms, jobs]


def _sign(score: float | None) -> str:
    return "none" if score is None else "0" if score == 0 else "1" if score > 0 else "-1"
