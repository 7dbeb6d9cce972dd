"""Training as Prometheus metrics, and where the time between steps goes."""

from __future__ import annotations

import contextlib

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from trainer.metrics import TrainerMetrics
from trainer.spent import Spent


def test_figures_are_those_of_the_last_step_and_counters_go_on() -> None:
    registry = CollectorRegistry()
    metrics = TrainerMetrics(registry)
    metrics.stepped("aa", 1, {"logprob_diff_mean": 0.25, "dropped_stale": 3.0}, [0, 0, 2])
    metrics.stepped("aa", 2, {"logprob_diff_mean": 0.5, "ess": 0.75}, [1])
    metrics.stepped("bb", 7, {"logprob_diff_mean": 0.125, "dropped_stale": 1.0}, [5])
    metrics.failed("aa")
    one = {"lineage": "aa"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"nextstate_trainer_{name}", one | labels)

    assert value("logprob_difference") == 0.5
    assert value("step", figure="ess") == 0.75
    assert value("step", figure="dropped_stale") is None  # of the step before
    assert value("dropped_total", reason="stale") == 3
    assert (value("steps_total", outcome="trained"), value("steps_total", outcome="failed")) == (
        2,
        1,
    )
    assert (value("samples_total"), value("version")) == (4, 2)
    assert [value("lag_bucket", le=le) for le in ("0.0", "1.0", "2.0", "+Inf")] == [2, 3, 4, 4]
    assert b'nextstate_trainer_version{lineage="bb"} 7.0' in generate_latest(registry)
    assert generate_latest(registry).startswith(b"# HELP nextstate_trainer_logprob_difference")


def test_shares_of_the_time_since_the_step_before() -> None:
    now = 100.0

    def pass_by(seconds: float) -> None:
        nonlocal now
        now += seconds

    spent = Spent(lambda: now)
    with spent.on("wait"):
        pass_by(3)
    with contextlib.suppress(RuntimeError), spent.on("train"):
        pass_by(4)
        raise RuntimeError
    with spent.on("wait"):
        pass_by(1)
    pass_by(2)
    assert spent.figures() == pytest.approx({"step_s": 10, "share_wait": 0.4, "share_train": 0.4})
    assert spent.figures() == {"step_s": 0}
