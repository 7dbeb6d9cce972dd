"""The gradient from stale samples is biased without a correction, and exact with the whole one."""

import math

import pytest
import torch

from bench.bandit import (
    CORRECTIONS,
    LAGS,
    Bandit,
    average,
    bandit,
    effective,
    errors,
    gradients,
    table,
)


def test_gradients_equal_the_formula() -> None:
    """w (r - b) (e_a - π) for each arm, the weight truncated at 2."""
    one = bandit(3, 16)
    policy, old = one.logits.softmax(-1), one.stale.softmax(-1)
    gain = one.rewards - old @ one.rewards
    weight = (policy / old).clamp(max=2)
    expected = (weight * gain)[:, None] * (torch.eye(len(policy)) - policy)
    torch.testing.assert_close(gradients(one, CORRECTIONS["truncated at 2"]), expected)


def test_two_arms_by_hand() -> None:
    """π = (3/4, 1/4) sampled at (1/2, 1/2), rewards 1 and 0: the true gradient is ±3/16."""
    one = Bandit(
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        torch.tensor([math.log(3), 0.0], dtype=torch.float64),
        torch.zeros(2, dtype=torch.float64),
    )
    assert one.true_gradient.tolist() == pytest.approx([3 / 16, -3 / 16])
    # Uncorrected: 1/2 (1/2)(1/4) + 1/2 (-1/2)(-3/4) = 1/4, a third too much.
    assert errors(one, CORRECTIONS["none"])["bias"] == pytest.approx(1 / 3)
    # Corrected, each arm counts by its probability now, and 3/16 is left.
    assert errors(one, CORRECTIONS["truncated at 2"])["bias"] == pytest.approx(0)


@pytest.mark.parametrize("lag", LAGS)
def test_the_whole_weight_leaves_no_bias_at_any_lag(lag: int) -> None:
    assert average(lag, CORRECTIONS["untruncated"], 5)["bias"] < 1e-9


def test_without_a_correction_the_bias_grows_with_the_lag() -> None:
    found = [average(lag, CORRECTIONS["none"], 10)["bias"] for lag in LAGS]
    assert found[0] == pytest.approx(0, abs=1e-12)
    assert found == sorted(found)
    assert found[-1] > 1


@pytest.mark.parametrize("name", ["truncated at 2", "masked at 2"])
def test_a_bounded_weight_leaves_a_fraction_of_the_bias(name: str) -> None:
    for lag in LAGS[1:]:
        bounded = average(lag, CORRECTIONS[name], 10)
        none = average(lag, CORRECTIONS["none"], 10)
        assert bounded["bias"] < 0.2 * none["bias"]
        assert bounded["rmse"] < none["rmse"]


def test_samples_are_worth_less_the_older_they_are() -> None:
    sizes = [effective(lag, 20) for lag in LAGS]
    assert sizes[0] == pytest.approx(1)
    assert sizes == sorted(sizes, reverse=True)


def test_the_table_has_a_row_for_each_error() -> None:
    found = {"none": {str(lag): {"bias": lag / 8, "rmse": 1, "cosine": 1} for lag in LAGS}}
    assert len(table(found).splitlines()) == 4
    assert "2.000" in table(found)
