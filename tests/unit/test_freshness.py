from __future__ import annotations

import pytest

from gateway.freshness import capacity, is_stale, lag


@pytest.mark.parametrize(
    ("max_lag", "batch", "backlog", "running", "left"),
    [(4, 16, 0, 0, 80), (4, 16, 70, 10, 0), (4, 16, 90, 1, -11), (0, 8, 3, 4, 1)],
)
def test_capacity_is_what_the_allowed_versions_consume(
    max_lag: int, batch: int, backlog: int, running: int, left: int
) -> None:
    assert capacity(max_lag=max_lag, batch=batch, backlog=backlog, running=running) == left


@pytest.mark.parametrize(
    ("live", "oldest", "behind", "stale"),
    [(7, 7, 0, False), (7, 3, 4, False), (7, 2, 5, True), (7, 8, -1, True)],
)
def test_a_sample_is_stale_beyond_the_bound(
    live: int, oldest: int, behind: int, *, stale: bool
) -> None:
    assert lag(live, oldest) == behind
    assert is_stale(live_version=live, version_min=oldest, max_lag=4) is stale
