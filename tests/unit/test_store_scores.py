"""Intervals of means, against tables and sums by hand."""

from __future__ import annotations

import math

import pytest

from gateway.store.scores import interval, student

#: 97.5 % quantiles as tables print them (NIST, Engineering Statistics Handbook, 1.3.6.7.2).
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 100: 1.984}


@pytest.mark.parametrize(("freedom", "expected"), TABLE.items())
def test_quantiles_are_those_of_the_table(freedom: int, expected: float) -> None:
    assert student(freedom) == pytest.approx(expected, rel=0.0015)


def test_quantiles_fall_toward_those_of_the_normal_distribution() -> None:
    values = [student(freedom) for freedom in range(1, 200)]
    assert values == sorted(values, reverse=True)
    assert student(10**9) == pytest.approx(1.959964, abs=1e-6)


def test_an_interval_is_that_of_a_mean() -> None:
    # Ten scores, five of 1 and five of 0: mean 0.5, deviation √(2.5 / 9).
    low, high = interval(10, 0.5, math.sqrt(2.5 / 9))
    assert low is not None
    assert high is not None
    assert high - 0.5 == pytest.approx(2.262 * 0.527046 / math.sqrt(10), rel=1e-3)
    assert 0.5 - low == pytest.approx(high - 0.5)


def test_one_score_has_no_interval_and_none_leaves_the_range() -> None:
    assert interval(1, 1.0, None) == (None, None)
    assert interval(2, 0.0, math.sqrt(2)) == (-1.0, 1.0)
    assert interval(5, 1.0, 0.0) == (1.0, 1.0)
