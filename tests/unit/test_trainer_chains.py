"""Which turns share a sequence."""

from uuid import UUID

from gateway.records import FinishReason, TrainingSample
from trainer.chains import chains


def sample(prompt: tuple[int, ...], reply: tuple[int, ...], session: int = 1) -> TrainingSample:
    return TrainingSample(
        id=UUID(int=sum(prompt)), turn_id=UUID(int=2), session_id=UUID(int=session), user="ann",
        score=1.0, weight=1.0, prompt_ids=prompt, sampled_ids=reply,
        logprobs=(-0.5,) * len(reply), spans=(), temperature=0.8,
        finish_reason=FinishReason.STOP, arrived_at=0.0,
    )  # fmt: skip


def test_turns_that_continue_each_other_are_one_sequence_in_any_order() -> None:
    turns = [sample((1, 2, 3, 4, 5, 6), (7,)), sample((1, 2), (3,)), sample((1, 2, 3, 4), (5,))]
    assert chains(turns) == [(1, 2, 0)]


def test_turns_between_may_be_missing() -> None:
    assert chains([sample((1,), (2,)), sample((1, 2, 3, 4, 5), (6,))]) == [(0, 1)]


def test_all_ids_must_be_the_beginning() -> None:
    turn, edited = sample((1, 2), (3, 4)), sample((1, 2, 3, 9, 5), (6,))
    assert chains([turn, edited]) == [(0,), (1,)]
    # A truncated view of the reply is no continuation of it.
    assert chains([turn, sample((1, 2, 3), (9,))]) == [(0,), (1,)]


def test_a_fork_is_joined_by_one_of_its_branches() -> None:
    root, left, right = sample((1,), (2,)), sample((1, 2, 3), (4,)), sample((1, 2, 5), (6,))
    assert chains([root, left, right]) == [(0, 1), (2,)]


def test_siblings_and_twins_stay_apart() -> None:
    assert chains([sample((1, 2), (3,)), sample((1, 2), (4,))]) == [(0,), (1,)]
    twins = [sample((1, 2), (3,)), sample((1, 2), (3,)), sample((1, 2, 3, 4), (5,))]
    found = chains(twins)
    assert sorted(index for chain in found for index in chain) == [0, 1, 2]
    assert sorted(map(len, found)) == [1, 2]


def test_sessions_are_never_mixed() -> None:
    assert chains([sample((1,), (2,)), sample((1, 2, 3), (4,), session=2)]) == [(0,), (1,)]
