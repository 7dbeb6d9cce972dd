from __future__ import annotations

from typing import Any

import pytest

from gateway.freshness import (
    LONGEST_WAIT_S,
    UNKNOWN_WAIT_S,
    Admission,
    Load,
    admit,
    capacity,
    in_time,
    is_stale,
    lag,
    retry_after,
    share,
)


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


def _load(**values: Any) -> Load:
    """η = 1 and b = 4: eight may be pending."""
    return Load(
        **{
            "max_lag": 1,
            "batch": 4,
            "full_batch": 4,
            "backlog": {},
            "running": 0,
            "step_s": 10.0,
            "since_s": 4.0,
            **values,
        }
    )


@pytest.mark.parametrize(
    ("behind", "kept"),
    [
        ({}, 0),
        ({0: 8}, 8),
        ({0: 9}, 8),
        # The next version takes 4 of those one behind; the others are too stale then.
        ({1: 9}, 4),
        ({1: 9, 0: 9}, 8),
        ({1: 2, 0: 5}, 7),
        ({2: 5, 0: 1}, 1),
    ],
)
def test_what_is_trained_on_in_time(behind: dict[int, int], kept: int) -> None:
    assert in_time(behind, max_lag=1, batch=4) == kept


@pytest.mark.parametrize(
    ("values", "left"),
    [
        ({"backlog": {0: 5}, "running": 2}, 1),
        ({"backlog": {0: 5}, "running": 3}, 0),
        # Up to a version's worth of what is too much counts in full.
        ({"backlog": {0: 5}, "running": 7}, -4),
        ({"backlog": {0: 500}, "running": 7}, -4),
        ({"backlog": {1: 500}, "running": 0}, 0),
        # A version that took little had no more to take: it would take four.
        ({"batch": 1, "backlog": {0: 2}, "running": 1}, 1),
        ({"batch": 1, "backlog": {0: 2}, "running": 2}, 0),
    ],
)
def test_the_capacity_of_a_line(values: dict[str, Any], left: int) -> None:
    assert _load(**values).capacity == left


@pytest.mark.parametrize(
    ("pending", "opens", "rejects", "found"),
    [
        (7, True, True, Admission.CAPTURED),
        (8, True, True, Admission.REJECTED),
        (8, True, False, Admission.CAPTURED),
        (8, False, True, Admission.CAPTURED),
        (15, False, True, Admission.CAPTURED),
        (16, False, True, Admission.UNCAPTURED),
        (16, True, False, Admission.UNCAPTURED),
        (1000, True, True, Admission.REJECTED),
    ],
)
def test_only_what_opens_a_session_of_a_key_that_says_so_is_turned_away(
    pending: int, opens: bool, rejects: bool, found: Admission
) -> None:
    load = _load(backlog={0: pending})
    assert admit(load, opens=opens, rejects=rejects, hard_cap=2.0) is found


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("rejects", [True, False])
def test_nothing_is_held_back_without_a_judge_and_a_trainer(opens: bool, rejects: bool) -> None:
    assert admit(None, opens=opens, rejects=rejects, hard_cap=1.0) is Admission.CAPTURED


@pytest.mark.parametrize(
    ("values", "ahead", "seconds"),
    [
        # A version ends every 10 s, the next one in 6: it frees four places.
        ({"running": 8}, 0, 6.0),
        ({"running": 8}, 3, 6.0),
        ({"running": 8}, 4, 16.0),
        ({"running": 11}, 0, 6.0),
        ({"running": 12}, 0, 16.0),
        ({"running": 8}, 200, LONGEST_WAIT_S),
        # There is room, but for those who were told before.
        ({"running": 6}, 0, 0.0),
        ({"running": 6}, 2, 6.0),
        # Later than it should be.
        ({"running": 8, "since_s": 25.0}, 0, 1.0),
        ({"running": 8, "step_s": None}, 0, UNKNOWN_WAIT_S),
        ({"running": 8, "since_s": None}, 0, UNKNOWN_WAIT_S),
    ],
)
def test_when_to_come_back(values: dict[str, Any], ahead: int, seconds: float) -> None:
    assert retry_after(_load(**values), ahead) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("left", "replicas", "own"), [(16, 4, 4), (1, 4, 1), (5, 2, 3), (-3, 2, 0)]
)
def test_replicas_share_the_room(left: int, replicas: int, own: int) -> None:
    assert share(left, replicas) == own
