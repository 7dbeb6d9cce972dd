"""The simulation accounts for every task, and shows what it is there to show."""

import pytest

from bench.schedule import BATCH, FLIGHTS, MAX_LAG, ORDERS, WORKLOADS, Task, figures, line, table


@pytest.mark.parametrize("flight", FLIGHTS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_task_is_trained_or_dropped_or_left_for_a_batch_that_never_fills(
    workload: str, order: str, flight: int
) -> None:
    tasks = line(workload, order, flight).run(400)
    trained = [task.lag for task in tasks if task.lag is not None]
    assert all(0 <= lag <= MAX_LAG for lag in trained)
    assert len(trained) % BATCH == 0
    assert not any(task.dropped and task.lag is not None for task in tasks)
    left = len(tasks) - len(trained) - sum(task.dropped for task in tasks)
    assert 0 <= left < BATCH
    assert tasks == line(workload, order, flight).run(400)


def test_greed_trains_on_what_is_fast_and_strictness_waits_for_what_is_slow() -> None:
    found = {}
    for order in ORDERS:
        one = line("long", order, 3)
        found[order] = figures(one.run(1600), one.now, one.step_s)
    assert found["greedy"]["slow_trained"] < 0.2 < found["strict"]["slow_trained"]
    assert found["greedy"]["slow_trained"] <= found["W = 1.25 B"]["slow_trained"] <= 0.26
    assert found["greedy"]["trained_per_s"] > found["strict"]["trained_per_s"]


def test_figures_by_hand() -> None:
    tasks = [Task(n, float(n), 0, 0.0, lag=n % 2) for n in range(1, 7)]
    tasks += [Task(7, 7.0, 0, 0.0, dropped=True), Task(8, 8.0, 0, 0.0, lag=3)]
    found = figures(tasks, seconds=14.0, step_s=16.0)
    assert found["trained"] == pytest.approx(7 / 8)
    assert found["dropped"] == pytest.approx(1 / 8)
    assert found["slow_trained"] == pytest.approx(1 / 7)  # 7 and 8 are the slowest quarter
    assert found["slow_dropped"] == pytest.approx(1 / 2)
    assert found["seconds_ratio"] == pytest.approx((29 / 7) / 4.5)
    assert (found["lag_mean"], found["lag_max"]) == (pytest.approx(6 / 7), 3)
    assert found["trained_per_s"] == pytest.approx(0.5)
    assert found["busy"] == pytest.approx(0.5)
    assert "0.875" in table({"short": {"2 B": {"strict": found}}})
