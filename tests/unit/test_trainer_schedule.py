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
    **changes: object,
) -> SampleHead:
    return SampleHead(
        id=UUID(int=number),
        turn_id=UUID(int=1000 + number),
        session_id=UUID(int=session or 2000 + number),
        score=score,
        version_min=version,
        arrived_at=float(number) if at is None else at,
        **changes,  # type: ignore[arg-type]
    )


def numbers(heads: tuple[SampleHead, ...]) -> list[int]:
    return [head.id.int for head in heads]


def reasons(choice: Choice) -> dict[int, str]:
    return {head.id.int: reason for head, reason in choice.dropped.items()}


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
    assert reasons(choice) == {1: "stale"}
    assert numbers(choice.chosen) == [2, 3]
    assert [lag(h, 5) for h in choice.chosen] == [2, 0]


def test_a_score_of_zero_trains_nothing_and_takes_no_place() -> None:
    choice = pick([head(1, score=0), head(2), head(3), head(4)])
    assert reasons(choice) == {1: "score_zero"}
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
    assert choice.dropped == {}
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
    assert pick([], overdue_before=1e12) == Choice((), {}, due=False)


def test_a_method_trains_on_what_says_something_to_it() -> None:
    heads = [head(1, score=0), head(2, score=0, taught=True), head(3), head(4, taught=True)]
    scored = {1: "score_zero", 2: "score_zero"}
    assert reasons(pick(heads)) == reasons(pick(heads, method="grpo")) == scored
    assert reasons(pick(heads, method="combined")) == {1: "score_zero"}
    assert reasons(pick(heads, method="opd")) == {1: "no_teaching", 3: "no_teaching"}


def test_a_turn_that_another_method_has_taken_is_not_taken_again() -> None:
    choice = pick([head(1, repeated=True), head(2)])
    assert (reasons(choice), numbers(choice.chosen)) == ({1: "repeated"}, [2])


def group(name: str, *numbers: int, scores: tuple[float, ...] = (1, -1)) -> list[SampleHead]:
    return [
        head(number, score=scores[place % len(scores)], group=name, session=77)
        for place, number in enumerate(numbers)
    ]


GRPO = {"method": "grpo", "batch": 4, "window": 8, "per_session": 1}


def test_a_group_is_taken_whole_or_waits() -> None:
    heads = [head(1), *group("a", 2, 9), *group("b", 3, 4, 5)]
    choice = pick(heads, **GRPO)
    # a is taken where its oldest is; b does not fit beside it, which is why the batch is full.
    assert numbers(choice.chosen) == [1, 2, 9]
    assert choice.due
    waiting = pick(heads, **GRPO, open_groups={"a"})
    assert numbers(waiting.chosen) == [1, 3, 4, 5]
    assert reasons(choice) == reasons(waiting) == {}


def test_a_group_that_waits_holds_its_places_until_its_time_is_over() -> None:
    heads = [*group("a", 1, 2, 3), head(4), head(5)]
    open_ = {"open_groups": {"a"}, "window": 4}
    assert numbers(pick(heads, **{**GRPO, **open_}).chosen) == [4]
    assert not pick(heads, **{**GRPO, **open_}).due
    late = pick(heads, **{**GRPO, **open_}, groups_before=1.5)
    assert numbers(late.chosen) == [1, 2, 3, 4]


def test_groups_of_equal_scores_are_dropped_and_counted() -> None:
    heads = [*group("a", 1, 2, scores=(1,)), *group("b", 3, 4, scores=(-1,)), *group("c", 5, 6)]
    choice = pick(heads, **GRPO, min_batch=2)
    assert reasons(choice) == dict.fromkeys((1, 2, 3, 4), "group_flat")
    assert choice.flat_groups == 2
    assert numbers(choice.chosen) == [5, 6]


def test_no_verdict_is_no_member_and_one_alone_is_no_group() -> None:
    heads = [*group("a", 1, 2, scores=(1, 0)), head(3)]
    choice = pick(heads, **GRPO)
    assert reasons(choice) == {2: "score_zero"}
    assert numbers(choice.chosen) == [1, 3]


def test_a_group_larger_than_a_batch_is_a_batch() -> None:
    choice = pick([*group("a", 1, 2, 3, 4, 5, 6), head(7)], **GRPO)
    assert numbers(choice.chosen) == [1, 2, 3, 4, 5, 6]
    assert choice.due


def test_other_methods_know_no_groups() -> None:
    choice = pick(group("a", 1, 2, 3), batch=2, window=2, open_groups={"a"})
    assert numbers(choice.chosen) == [1, 2]
