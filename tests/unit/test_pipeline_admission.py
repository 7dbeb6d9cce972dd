"""Admission as one gateway sees it, and in a simulation with others, a judge and a trainer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from statistics import median
from typing import Any
from uuid import UUID

import pytest

from gateway.config import FreshnessSettings
from gateway.errors import TooManyRequests
from gateway.pipeline.admission import Admitter
from gateway.store.admission import Counts
from tests.admission import World, off

LINEAGE, OTHER = UUID(int=1), UUID(int=2)


class Door:
    """An Admitter of η = 1 and b = 4 (eight may be pending) under a clock of the test's own."""

    def __init__(self) -> None:
        self.now = 100.0
        settings = FreshnessSettings(max_lag=1, batch=4, hard_cap=2.0)
        self.admitter = Admitter(settings, lambda: self.now)
        self.wanted = 0
        self.admitter.want = self._want

    def _want(self) -> None:
        self.wanted += 1

    def learn(self, **values: Any) -> None:
        self.admitter.reading()
        self.admitter.learn({LINEAGE: self._counts(**values)}, self.now)

    def opens(self, *, rejects: bool = True) -> bool:
        return self.admitter.admit(LINEAGE, opens=True, rejects=rejects)

    def refused(self) -> TooManyRequests:
        with pytest.raises(TooManyRequests) as caught:
            self.opens()
        return caught.value

    @staticmethod
    def _counts(**values: Any) -> Counts:
        known: Mapping[str, Any] = {"live": True, "backlog": {}, "waiting": 0, "step_s": 10.0}
        return Counts(**{**known, "since_s": 4.0, **values})


@pytest.fixture
def door() -> Door:
    return Door()


def test_nothing_is_held_back_before_anything_is_known(door: Door) -> None:
    assert door.opens()
    door.learn(backlog={0: 100}, live=False)
    assert door.opens()
    assert door.admitter.state() == "off"


def test_what_this_gateway_has_begun_counts_at_once(door: Door) -> None:
    door.learn(backlog={0: 4}, waiting=1, elsewhere=1)
    with door.admitter.sampling(LINEAGE, 1):
        assert door.opens()
        with door.admitter.sampling(LINEAGE, 1):
            error = door.refused()
    assert (error.retry_after_s, error.code) == (6.0, "training_behind")
    assert "8 turns wait" in error.message


def test_what_has_ended_counts_until_it_is_read(door: Door) -> None:
    door.learn(backlog={0: 7})
    with door.admitter.sampling(LINEAGE, 1):
        pass
    door.refused()
    assert door.admitter.reading() == {}, "it is stored: others need not be told of it"
    door.refused()
    with door.admitter.sampling(LINEAGE, 1):
        # Begun after the reading was: what is learned cannot have it.
        door.admitter.learn({LINEAGE: Door._counts(backlog={0: 7})}, door.now)
        door.refused()
        assert door.admitter.reading() == {LINEAGE: 1}


def test_a_place_in_line_is_told_once(door: Door) -> None:
    """Four places every ten seconds: the fifth client comes back ten seconds later."""
    door.learn(backlog={0: 8})
    assert [door.refused().retry_after_s for _ in range(5)] == [6.0, 6.0, 6.0, 6.0, 16.0]
    door.now += 6.5
    # Those four are due; one is still ahead. The counts are as old.
    assert door.refused().retry_after_s == 1.0


def test_other_replicas_have_told_as_many(door: Door) -> None:
    door.learn(backlog={0: 8}, replicas=2)
    assert [door.refused().retry_after_s for _ in range(3)] == [6.0, 6.0, 16.0]


def test_replicas_that_see_the_same_room_give_away_their_share(door: Door) -> None:
    door.learn(backlog={0: 2}, replicas=3)
    assert [door.opens(), door.opens()] == [True, True]
    assert door.wanted == 0
    assert door.refused().retry_after_s == 1.0
    assert door.wanted == 1
    door.learn(backlog={0: 4}, replicas=3)
    assert door.opens()


def test_keys_that_serve_are_never_refused(door: Door) -> None:
    door.learn(backlog={0: 15})
    assert door.opens(rejects=False)
    assert door.admitter.admit(LINEAGE, opens=False, rejects=True)
    assert door.admitter.state() == "full"
    door.learn(backlog={0: 16})
    assert not door.opens(rejects=False)
    assert not door.admitter.admit(LINEAGE, opens=False, rejects=True)
    assert door.admitter.describe(LINEAGE)["state"] == "over"
    assert door.admitter.admit(OTHER, opens=True, rejects=True)


def test_old_counts_hold_nobody_back(door: Door) -> None:
    door.learn(backlog={0: 8})
    door.now += 9
    door.refused()
    door.now += 2
    assert door.opens()


def test_b_is_what_versions_really_consume(door: Door) -> None:
    door.learn(backlog={0: 5}, batch=2.6, full_batch=3)
    door.refused()
    door.learn(backlog={0: 3}, batch=2.6, full_batch=3)
    assert door.opens()


def test_arrivals_at_four_gateways() -> None:
    """One case of what `make proof-admission` shows of 100,000."""
    world = World(seed=7)
    found = world.run(4000)
    assert found.refused > 1000
    assert found.wrong == []
    assert max(found.lags) <= world.settings.max_lag
    assert found.longest_told <= 60
    assert median(off(found.waits)) <= 0.2
    assert median(off(found.every)) <= 0.2
    # Nor is anybody told to wait longer than needs be: there is always a batch to train on.
    assert median(off(found.places)) <= 0.2
    assert found.trainer_idle_s < 0.05 * found.ended_at


def test_a_trainer_that_comes_back_is_neither_flooded_nor_starved() -> None:
    back, step_s, batch = 420.0, 6.0, 16
    found = World(seed=3, away=(300.0, back), step_s=step_s).run(4000)
    assert found.cut > 1000
    assert found.piled_up - found.cut == 5 * batch
    before = bisect_left(found.opened, back)
    assert before - bisect_left(found.opened, 330.0) > 500, "nothing is held back meanwhile"
    for start in range(int(back), int(found.ended_at - 2 * step_s)):
        of_two_steps = bisect_left(found.opened, start + 2 * step_s) - bisect_left(
            found.opened, float(start)
        )
        assert of_two_steps <= 5 * batch
    again = bisect_left(found.opened, back + 30) - before
    assert again > 0
    assert found.trainer_idle_s < 0.05 * found.ended_at
