"""The arithmetic of the measurements, against values worked out by hand."""

from __future__ import annotations

import pytest

from bench.figures import Run, added, figures, per_request, per_token, percentile, ratios


def run(cpu_us: float, latencies: list[float] | None = None, **rest: float) -> Run:
    times = latencies or [1.0]
    return Run(
        requests=10,
        tokens=80,
        cpu_us=cpu_us,
        store_cpu_us=rest.get("store", 0.0),
        latencies_ms=times,
        first_ms=[time / 2 for time in times],
    )


@pytest.mark.parametrize(
    ("share", "expected"), [(0.2, 1), (0.21, 2), (0.5, 3), (0.6, 3), (0.99, 9), (1, 9)]
)
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    assert percentile([9, 1, 3, 2, 5], share) == expected


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1)])
def test_there_is_no_percentile_of_nothing(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, share)


def test_costs_are_medians_over_rounds() -> None:
    runs = [run(1000), run(9000), run(2000)]
    assert per_request(runs) == 200
    assert per_token(runs) == 25


def test_added_time_compares_the_same_percentile_round_by_round() -> None:
    runs = [run(0, [5, 7, 20]), run(0, [6, 6, 6]), run(0, [1, 9, 30])]
    direct = [run(0, [1, 2, 4]), run(0, [1, 1, 1]), run(0, [1, 1, 3])]
    # p50: 7 - 2, 6 - 1, 9 - 1; p99: 20 - 4, 6 - 1, 30 - 3.
    assert added(runs, direct, 0.5) == 5
    assert added(runs, direct, 0.99) == 16
    assert added(runs, direct, 0.5, first=True) == 2.5


def test_a_round_without_its_direct_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        added([run(0), run(0)], [run(0)], 0.5)


def test_what_is_reported_of_a_system() -> None:
    runs = {
        "small": [run(4000, store=500)],
        "busy": [run(3000)],
        "serial": [run(0, [3, 4])],
        "agentic": [run(40_000, store=900)],
        "chunk": [run(8000)],
        "first_token": [run(20_000, [10])],
    }
    direct = {"serial": [run(0, [1, 1.5])], "first_token": [run(0, [4])]}
    assert figures(runs, direct) == {
        "cpu_us_small": 400,
        "cpu_us_small_busy": 300,
        "cpu_us_agentic": 4000,
        "cpu_us_agentic_stream": 2000,
        "cpu_us_chunk": 100,
        "capacity_small": 2500,
        "capacity_agentic": 250,
        "added_ms_p50": 2,
        "added_ms_p99": 2.5,
        "ttft_added_ms_p50": 3,
        "ttft_added_ms_p99": 3,
        "store_cpu_us_small": 50,
        "store_cpu_us_agentic": 90,
    }


def test_ratios_are_multiples_of_the_baseline() -> None:
    names = ("cpu_us_small", "cpu_us_small_busy", "cpu_us_agentic", "cpu_us_chunk", "rss_mb")
    costs = dict(zip(names, (400.0, 250.0, 500.0, 100.0, 50.0), strict=True))
    mine = dict(zip(names, (600.0, 300.0, 4000.0, 90.0, 200.0), strict=True))
    found = ratios({"mine": mine, "base": costs}, "base")
    assert found["mine"] == {
        "cpu_us_small": 1.5,
        "cpu_us_small_busy": 1.2,
        "cpu_us_agentic": 8,
        "cpu_us_chunk": 0.9,
        "rss_mb": 4,
    }
    assert set(found["base"].values()) == {1}
    assert ratios({"mine": mine}, "base") == {}
