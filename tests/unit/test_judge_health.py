from __future__ import annotations

from typing import Any

import pytest

from gateway.records import Judgement
from judge.health import Health, Outcome, figures, kappa, percentile


def graded(score: float | None, *votes: int | str | None, judge: str = "llm:m") -> Judgement:
    """A text among the votes is an error."""
    raw: list[dict[str, Any]] = [
        {"kind": "grade", "score": None, "error": vote}
        if isinstance(vote, str)
        else {"kind": "grade", "score": vote, "raw": ""}
        for vote in votes
    ]
    raw.append({"kind": "hint", "improves": True})
    return Judgement(judge=judge, score=score, votes=tuple(raw))


def test_figures_of_judgements() -> None:
    judgements = [
        graded(1.0, 1, 1, -1),
        graded(0.0, 1, -1),
        graded(None, None, None, None),
        graded(-1.0, -1, "away", None),
        Judgement(judge="rules", score=-1.0, hint="Shorter, please."),
    ]
    outcomes = [
        Outcome(judgement=judgement, seconds=seconds)
        for judgement, seconds in zip(judgements, (0.1, 0.2, 0.3, 0.4, 0.0), strict=True)
    ]
    assert figures(outcomes) == {
        "judgements": 5,
        "settled_by_rules": 0.2,
        "scored": 0.8,
        "hinted": 0.2,
        "votes": 11,
        "voted": 3,
        "vote_errors": 1,
        # Four of the ten that were answered.
        "parse_failures": 0.4,
        # One third, a half and nothing: 5/6 over 3.
        "disagreement": 0.2778,
        "ms_p50": 200.0,
        "ms_p95": 400.0,
    }


def test_nothing_judged_is_nothing_known() -> None:
    report = Health().report()
    assert {name for name, value in report.items() if value == 0} == {
        "judgements", "votes", "voted", "vote_errors", "feedback_checked",
            "audit_checked",
    }  # fmt: skip
    assert {value for value in report.values() if value != 0} == {None}


def test_only_the_last_ones_count() -> None:
    health = Health(window=2)
    for score in (None, 1.0, 1.0):
        health.judged(graded(score), 0.0)
        health.checked(1.0, 0.5)
    assert health.report()["scored"] == 1
    assert health.report()["feedback_checked"] == 2


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        # Cohen's own form of example: 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: (0.7-0.5)/0.5.
        ([(1, 1)] * 20 + [(1, -1)] * 5 + [(-1, 1)] * 10 + [(-1, -1)] * 15, 0.4),
        ([(1, 1), (-1, -1), (0, 0)], 1.0),
        ([(1, -1), (-1, 1)], -1.0),
        ([(1, 1), (1, -1)], 0.0),
        ([(1, 1), (1, 1)], None),
        ([], None),
    ],
)
def test_cohens_kappa(pairs: list[tuple[int, int]], expected: float | None) -> None:
    found = kappa(pairs)
    assert found == (pytest.approx(expected) if expected is not None else None)


def test_percentiles_by_nearest_rank() -> None:
    values = [15.0, 20.0, 35.0, 40.0, 50.0]
    assert [percentile(values, share) for share in (0.05, 0.3, 0.4, 0.5, 1.0)] == [
        15.0, 20.0, 20.0, 35.0, 50.0,
    ]  # fmt: skip
    assert percentile([], 0.5) is None
