"""Which samples are taken, dropped, or left in line."""

from uuid import UUID

import pytest

from gateway.records import SampleHead
from trainer.schedule import Choice, choose, lag


def head(
    number: int,
    *,
    at: float | None = None,
    version: int = 5,
    score: float = 1,
    session: int = 0,
) -> SampleHead:
    return SampleHead(
        id=UUID(int=number),
        turn_id=UUID(int=1000 + number),
        session_id=UUID(int=session or 2000 + number),
        score=score,
        version_min=version,
        arrived_at=float(number) if at is None else at,
    )


def numbers(heads: tuple[SampleHead, ...]) -> list[int]:
    return [head.id.int for head in heads]


def pick(heads: list[SampleHead], **changes: object) -> Choice:
    values: dict[str, object] = {
        "live_version": 5, "max_lag": 2, "batch": 3, "window": 4, "min_batch": 2,
        "overdue_before": -1.0,
    }  # fmt: skip
    return choose(heads, **{**values, **changes})  # type: ignore[arg-type]


def test_the_oldest_are_taken_whatever_order_they_come_in() -> None:
    choice = pick([head(4), head(1), head(3), head(2)])
    assert numbers(choice.chosen) == [1, 2, 3]
    assert choice.due


def test_beyond_eta_is_dropped_and_at_eta_is_kept() -> None:
    choice = pick([head(1, version=2), head(2, version=3), head(3, version=9)], batch=2, window=2)
    assert numbers(choice.stale) == [1]
    assert numbers(choice.chosen) == [2, 3]
    assert [lag(h, 5) for h in choice.chosen] == [2, 0]


def test_a_score_of_zero_trains_nothing_and_takes_no_place() -> None:
    choice = pick([head(1, score=0), head(2), head(3), head(4)])
    assert numbers(choice.neutral) == [1]
    assert numbers(choice.chosen) == [2, 3, 4]


def test_turns_without_a_verdict_hold_their_place_in_the_window() -> None:
    ready = [head(10), head(11), head(12)]
    assert numbers(pick(ready, waiting=[1.0, 2.0]).chosen) == [10, 11]
    assert not pick(ready, waiting=[1.0, 2.0]).due
    assert numbers(pick(ready, waiting=[20.0, 21.0]).chosen) == [10, 11, 12]
    assert pick(ready, waiting=[1.0, 2.0, 3.0, 4.0]).chosen == ()


def test_strictly_in_order_nothing_passes_a_turn_without_a_verdict() -> None:
    ready = [head(10), head(11), head(12), head(13)]
    assert numbers(pick(ready, order="strict", waiting=[11.5]).chosen) == [10, 11]
    assert numbers(pick(ready, order="strict", waiting=[]).chosen) == [10, 11, 12]
    assert pick(ready, order="strict", waiting=[9.0]).chosen == ()


def test_greedily_nothing_is_waited_for() -> None:
    ready = [head(number) for number in range(10, 20)]
    choice = pick(ready, order="greedy", waiting=[1.0] * 50, batch=9)
    assert numbers(choice.chosen) == list(range(10, 19))
    assert choice.due


def test_a_session_gives_only_so_many_and_the_rest_stays_in_line() -> None:
    ready = [head(n, session=1) for n in range(1, 7)] + [head(7, session=2), head(8)]
    choice = pick(ready, batch=8, window=8, per_session=2)
    assert numbers(choice.chosen) == [1, 2, 7, 8]
    # What is held back holds no place in the window, or one session could fill it.
    assert numbers(pick(ready, batch=4, window=4, per_session=2).chosen) == [1, 2, 7, 8]
    assert choice.stale == choice.neutral == ()
    assert numbers(pick(ready, batch=8, window=8).chosen) == list(range(1, 9))


@pytest.mark.parametrize(
    ("count", "overdue_before", "due"), [(2, 0.5, False), (2, 1.5, True), (1, 1.5, False)]
)
def test_a_small_batch_is_due_once_its_oldest_has_waited(
    count: int, overdue_before: float, due: bool
) -> None:
    heads = [head(number) for number in range(1, count + 1)]
    assert pick(heads, overdue_before=overdue_before).due is due


def test_nothing_ready_is_nothing_due() -> None:
    assert pick([], overdue_before=1e12) == Choice((), (), (), due=False)
