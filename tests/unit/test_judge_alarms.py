"""Alarms: which figures raise them, and how much must be known before they do."""

from __future__ import annotations

import pytest

from gateway.records import Judgement
from judge.alarms import alarms
from judge.config import AlarmConfig
from judge.health import Health

FINE = {
    "judgements": 60, "votes": 60, "voted": 30, "vote_errors": 0, "disagreement": 0.1,
    "parse_failures": 0.05, "ms_p95": 900.0, "score_drift": 0.1, "settled_drift": -0.1,
    "feedback_checked": 30, "feedback_kappa": 0.8,
}  # fmt: skip


def test_nothing_is_wrong_with_a_judge_that_is_well_or_has_done_nothing() -> None:
    assert alarms(FINE, AlarmConfig()) == []
    assert alarms({}, AlarmConfig()) == []
    assert alarms(Health().report(), AlarmConfig()) == []


@pytest.mark.parametrize(
    ("figure", "value", "count"),
    [
        ("disagreement", 0.41, "voted"),
        ("parse_failures", 0.21, "votes"),
        ("ms_p95", 60_000.0, "judgements"),
        ("score_drift", -0.6, "judgements"),
        ("settled_drift", 0.5, "judgements"),
        ("feedback_kappa", 0.19, "feedback_checked"),
    ],
)
def test_each_figure_beyond_its_threshold_is_named_once_enough_is_known(
    figure: str, value: float, count: str
) -> None:
    config = AlarmConfig(p95_ms=30_000)
    assert alarms({**FINE, figure: value}, config) == [figure]
    assert alarms({**FINE, figure: value, count: 29}, config) == []
    off = AlarmConfig(**{"p95_ms" if figure == "ms_p95" else figure: None})  # type: ignore[arg-type]
    assert alarms({**FINE, figure: value}, off) == []


def test_votes_that_are_mostly_errors_are_an_alarm() -> None:
    assert alarms({**FINE, "vote_errors": 31}, AlarmConfig()) == ["vote_errors"]
    assert alarms({**FINE, "vote_errors": 30}, AlarmConfig()) == []


def test_scores_that_turn_are_a_drift() -> None:
    health = Health()
    for score in [1.0] * 40 + [-0.5] * 40:
        health.judged(Judgement(judge="rules", score=score), 0.1)
    report = health.report()
    assert (report["score_drift"], report["settled_drift"]) == (-1.5, 0.0)
    assert alarms(report, AlarmConfig()) == ["score_drift"]
