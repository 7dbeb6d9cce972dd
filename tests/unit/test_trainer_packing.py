"""Where each sampled token and its numbers land."""

from dataclasses import replace
from uuid import UUID

import pytest

from gateway.errors import TrainerError
from gateway.records import FinishReason, TrainingSample, VersionSpan
from trainer.packing import defect, minibatches, pack
from trainer.rows import fill, group_by_length


def sample(prompt: tuple[int, ...], reply: tuple[int, ...], **changes: object) -> TrainingSample:
    base = TrainingSample(
        id=UUID(int=sum(prompt)), turn_id=UUID(int=2), session_id=UUID(int=3), user="ann",
        score=1.0, weight=1.0, prompt_ids=prompt, sampled_ids=reply,
        logprobs=tuple(-0.1 * (i + 1) for i in range(len(reply))), spans=(), temperature=0.8,
        finish_reason=FinishReason.STOP, arrived_at=0.0,
    )  # fmt: skip
    return replace(base, **changes)


def test_every_token_is_predicted_from_the_place_before_it() -> None:
    samples = [sample((10, 11), (12, 13)), sample((20, 21, 22), (23,), temperature=0.5)]
    (micro,) = pack(samples, [(1.0, 2.0), (-3.0,)], vocab=64, budget=100).micro
    # Both are three ids long without the last sampled one, which predicts nothing.
    assert micro.ids.tolist() == [[10, 11, 12], [20, 21, 22]]
    assert micro.places.tolist() == [1, 2, 5]
    assert micro.targets.tolist() == [12, 13, 23]
    assert micro.behaviour.tolist() == pytest.approx([-0.1, -0.2, -0.1])
    assert micro.advantages.tolist() == [1.0, 2.0, -3.0]
    assert micro.temperature.tolist() == pytest.approx([0.8, 0.8, 0.5])
    assert micro.samples.tolist() == [0, 0, 1]


def test_shorter_rows_are_padded_on_the_right_and_never_addressed() -> None:
    samples = [sample((1,), (2,)), sample((3, 4, 5), (6, 7))]
    packed = pack(samples, [(1.0,), (1.0, 1.0)], vocab=64, budget=100)
    (micro,) = packed.micro
    assert micro.ids.tolist() == [[3, 4, 5, 6], [1, 0, 0, 0]]
    assert micro.places.tolist() == [2, 3, 4]
    assert micro.samples.tolist() == [1, 1, 0]
    assert (packed.samples, packed.tokens) == (2, 3)


def test_groups_keep_to_the_budget_and_hold_each_sequence_once() -> None:
    lengths = [5, 40, 12, 9, 30, 7, 100]
    groups = list(group_by_length(lengths, 60))
    assert sorted(index for group in groups for index in group) == list(range(7))
    for group in groups:
        assert len(group) == 1 or max(lengths[i] for i in group) * len(group) <= 60
    assert groups[0] == [6]


def test_shared_rows_are_as_long_as_the_longest_sequence_and_no_longer() -> None:
    # By hand: 60 takes no other beside it; 40 and 20, 30 and 30 fill a row of 60.
    assert fill([30, 60, 20, 40, 30], 180) == [[[1], [3, 2], [0, 4]]]
    # What does not fit into a pass of 60 opens the next one, whose rows are its longest's.
    assert fill([30, 60, 20, 40, 30], 60) == [[[1]], [[3]], [[0], [4]], [[2]]]
    lengths = [1 + 37 * n % 90 for n in range(60)]
    passes = fill(lengths, 300)
    assert sorted(i for rows in passes for row in rows for i in row) == list(range(60))
    for rows in passes:
        width = max(lengths[i] for row in rows for i in row)
        assert all(sum(lengths[i] for i in row) <= width for row in rows)
        assert len(rows) == 1 or len(rows) * width <= 300
    padded = sum(
        len(group) * max(lengths[i] for i in group) for group in group_by_length(lengths, 300)
    )
    shared = sum(len(rows) * max(lengths[i] for row in rows for i in row) for rows in passes)
    assert sum(lengths) <= shared < padded


def test_sequences_of_one_row_begin_at_position_0_each() -> None:
    samples = [
        sample((1, 2, 3, 4, 5), (6, 7)),
        sample((10, 11), (12, 13), session_id=UUID(int=8)),
        sample((20, 21), (22,), session_id=UUID(int=9), temperature=0.5),
    ]
    gains = [(1.0, 2.0), (3.0, 4.0), (5.0,)]
    (micro,) = pack(samples, gains, vocab=64, budget=100, shared=True).micro
    assert micro.ids.tolist() == [[1, 2, 3, 4, 5, 6], [10, 11, 12, 20, 21, 0]]
    assert micro.positions is not None
    assert micro.positions.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]]
    assert micro.places.tolist() == [4, 5, 7, 8, 10]
    assert micro.targets.tolist() == [6, 7, 12, 13, 22]
    assert micro.advantages.tolist() == [1, 2, 3, 4, 5]
    assert micro.samples.tolist() == [0, 0, 1, 1, 2]
    assert micro.temperature.tolist() == pytest.approx([0.8, 0.8, 0.8, 0.8, 0.5])
    # Where nothing is shared nothing is masked.
    (plain,) = pack(samples[:2], gains[:2], vocab=64, budget=100, shared=True).micro
    assert plain.positions is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"sampled_ids": (), "logprobs": ()}, "no_tokens"),
        ({"prompt_ids": ()}, "no_tokens"),
        ({"logprobs": (-0.1,)}, "length_mismatch"),
        ({"prompt_ids": (1,) * 99}, "too_long"),
        ({"sampled_ids": (3, 64)}, "id_outside_vocabulary"),
        ({"prompt_ids": (-1,)}, "id_outside_vocabulary"),
        ({"logprobs": (-0.1, float("nan"))}, "logprob_not_finite"),
        ({"logprobs": (-0.1, float("-inf"))}, "logprob_not_finite"),
        ({"logprobs": (-0.1, 0.5)}, "logprob_not_finite"),
        ({"temperature": 0.0}, "temperature_zero"),
    ],
)
def test_defects(changes: dict[str, object], reason: str | None) -> None:
    assert defect(sample((1, 2), (3, 4), **changes), vocab=64, max_tokens=50) == reason


def test_a_chain_is_one_row_with_the_replies_of_all_its_turns() -> None:
    turns = [sample((1, 2), (3, 4)), sample((1, 2, 3, 4, 5), (6, 7), temperature=0.5)]
    (micro,) = pack(turns, [(1.0, 1.0), (-2.0, -2.0)], vocab=64, budget=100).micro
    assert micro.ids.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert micro.places.tolist() == [1, 2, 4, 5]
    assert micro.targets.tolist() == [3, 4, 6, 7]
    assert micro.samples.tolist() == [0, 0, 1, 1]
    assert micro.advantages.tolist() == [1, 1, -2, -2]
    assert micro.temperature.tolist() == pytest.approx([0.8, 0.8, 0.5, 0.5])


def test_lags_are_those_of_each_token() -> None:
    spans = (VersionSpan(3, 0, 1), VersionSpan(5, 1, 3))
    (micro,) = pack(
        [sample((1,), (2, 3, 4), spans=spans)], [(1.0,) * 3], vocab=64, budget=9, version=5
    ).micro
    assert micro.lags.tolist() == [2, 0, 0]


def test_minibatches_hold_every_sample_once_and_number_them_through() -> None:
    samples = [sample((number,), (number + 1,)) for number in range(1, 8)]
    parts = minibatches(samples, [(1.0,)] * 7, 3, vocab=64, budget=2)
    assert [part.samples for part in parts] == [2, 2, 3]
    owners = [owner for part in parts for one in part.micro for owner in one.samples.tolist()]
    assert sorted(owners) == list(range(7))
    assert len(minibatches(samples[:2], [(1.0,)] * 2, 5, vocab=64, budget=2)) == 2


@pytest.mark.parametrize("reply", [(99,), (1, 2)])
def test_what_cannot_be_packed_is_refused(reply: tuple[int, ...]) -> None:
    with pytest.raises(TrainerError):
        pack([sample((1,), reply)], [(1.0,)], vocab=64, budget=10)
