from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.demo.claims import Goals, check
from gateway.demo.measure import Gain, Score, VersionRow
from gateway.demo.users import Tally

GOALS = Goals(versions=2)
DONE = Tally(requests=100)


def scored(mean: float = 0.5, turns: int = 64) -> Score:
    return Score(turns=turns, mean=mean, ci95=(mean - 0.1, mean + 0.1), tokens=30.0)


def row(version: int, facts: float | None, turns: int = 16) -> VersionRow:
    return VersionRow(
        version=version, score=scored(turns=turns), facts=facts, lag_max=1, swap_ms=9.0
    )


ROWS = [row(0, 0.9), row(1, None), row(2, 0.8)]
GAIN = Gain(
    since=1, last=scored(), base=scored(-0.5), mean=1.0, ci95=(0.7, 1.3),
    over_version_0=1.1, over_control=0.9,
)  # fmt: skip


def held(rows: list[VersionRow] = ROWS, gain: Gain | None = GAIN, tally: Tally = DONE,
         goals: Goals = GOALS) -> dict[str, bool]:  # fmt: skip
    return {claim.name: claim.held for claim in check(rows, gain, tally, goals)}


def test_a_run_that_did_what_it_claims() -> None:
    assert held() == {
        "versions": True,
        "requests": True,
        "trained versions answer": True,
        "gain": True,
        "facts": True,
    }


def test_too_few_versions() -> None:
    assert not held(ROWS[:2])["versions"]


def test_a_failed_request_is_one_too_many_and_is_named() -> None:
    tally = Tally(requests=100, failed=1, errors=["APITimeoutError"])
    claim = next(c for c in check(ROWS, GAIN, tally, GOALS) if c.name == "requests")
    assert (claim.held, claim.detail) == (False, "1 of 100 failed (APITimeoutError)")


def test_no_requests_are_no_success() -> None:
    assert not held(tally=Tally())["requests"]


def test_trained_versions_that_never_answered() -> None:
    assert not held([row(0, 0.9), row(1, None, turns=0), row(2, 0.9, turns=0)])[
        "trained versions answer"
    ]


@pytest.mark.parametrize(
    "gain",
    [
        None,
        replace(GAIN, mean=0.29),
        replace(GAIN, ci95=(-0.01, 2.0)),
        replace(GAIN, over_version_0=0.2),
        replace(GAIN, over_control=0.2),
        replace(GAIN, last=scored(turns=63)),
        replace(GAIN, base=scored(turns=63)),
    ],
)
def test_a_gain_that_does_not_count(gain: Gain | None) -> None:
    assert not held(gain=gain)["gain"]


def test_whether_the_interval_excludes_the_wanted_gain_is_said() -> None:
    def detail(gain: Gain) -> str:
        return next(c.detail for c in check(ROWS, gain, DONE, GOALS) if c.name == "gain")

    assert detail(GAIN).endswith("the interval lies above +0.30")
    assert detail(replace(GAIN, ci95=(0.1, 1.3))).endswith("the interval reaches below +0.30")


@pytest.mark.parametrize(
    ("facts", "remembered"),
    [
        ([0.9, None, 0.8], True),
        ([0.9, 0.75, 0.9], False),
        ([0.9, None, None], False),
        ([None, 0.9, 0.9], False),
        ([0.5, 0.9, 0.9], True),
    ],
)
def test_facts_may_fall_by_a_tenth(facts: list[float | None], remembered: bool) -> None:
    rows = [row(version, share) for version, share in enumerate(facts)]
    assert held(rows)["facts"] is remembered


def test_a_quick_run_claims_no_learning() -> None:
    quick = held(gain=None, goals=Goals(versions=2, learning=False))
    assert set(quick) == {"versions", "requests", "trained versions answer"}
    assert all(quick.values())
