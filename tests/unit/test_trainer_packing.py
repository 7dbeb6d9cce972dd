"""Where each sampled token and its numbers land."""

from dataclasses import replace
from uuid import UUID

import pytest

from gateway.errors import TrainerError
from gateway.records import FinishReason, TrainingSample
from trainer.packing import defect, group_by_length, pack


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


@pytest.mark.parametrize("reply", [(99,), (1, 2)])
def test_what_cannot_be_packed_is_refused(reply: tuple[int, ...]) -> None:
    with pytest.raises(TrainerError):
        pack([sample((1,), reply)], [(1.0,)], vocab=64, budget=10)
