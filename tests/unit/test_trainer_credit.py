"""Advantages against values worked out by hand."""

import json
from uuid import UUID

import pytest

from gateway.records import FinishReason, TrainingSample
from trainer.config import CreditSettings
from trainer.credit import Baseline, Running, binary


def sample(score: float, user: str = "ann", weight: float = 1.0) -> TrainingSample:
    return TrainingSample(
        id=UUID(int=1), turn_id=UUID(int=2), session_id=UUID(int=3), user=user, score=score,
        weight=weight, prompt_ids=(1,), sampled_ids=(2,), logprobs=(-0.5,), spans=(),
        temperature=1.0, finish_reason=FinishReason.STOP, arrived_at=0.0,
    )  # fmt: skip


PLAIN = CreditSettings(user_prior=0)


def test_first_batch_uses_leave_one_out_alone() -> None:
    # Others of the first: (1 - 1 - 1) / 3 = -1/3; of a -1: (1 + 1 - 1) / 3 = 1/3.
    credit = binary([sample(s) for s in (1, 1, -1, -1)], Baseline(), PLAIN)
    assert credit.advantages == pytest.approx((4 / 3, 4 / 3, -4 / 3, -4 / 3))


def test_half_leave_one_out_half_running_mean() -> None:
    past = Baseline(Running(0.5, 10), {"ann": Running(0.5, 10)})
    # Others of the first: -1, so its baseline is (-1 + 0.5) / 2; of the second (1 + 0.5) / 2.
    credit = binary([sample(1), sample(-1)], past, PLAIN)
    assert credit.advantages == pytest.approx((1.25, -1.75))


def test_all_negative_scores_push_little_after_a_history_of_them() -> None:
    past = Baseline(Running(-1.0, 50), {"ann": Running(-1.0, 50)})
    assert binary([sample(-1)] * 3, past, PLAIN).advantages == pytest.approx((0, 0, 0))


def test_a_lone_score_is_compared_with_the_past_and_never_lost() -> None:
    past = Baseline(Running(-0.5, 8), {})
    assert binary([sample(1)], past, PLAIN).advantages == pytest.approx((1.5,))
    assert binary([sample(-1)], Baseline(), PLAIN).advantages == pytest.approx((-1,))


def test_a_users_mean_outweighs_the_overall_as_their_scores_come_in() -> None:
    past = Baseline(Running(0.0, 64), {"ann": Running(1.0, 4)})
    assert past.expected("ann", prior=4) == pytest.approx(0.5)
    assert past.expected("bob", prior=4) == pytest.approx(0.0)
    assert past.expected("ann", prior=12) == pytest.approx(0.25)
    assert Baseline().expected("ann", prior=4) is None


def test_weights_and_zero_scores() -> None:
    settings = CreditSettings(negative_weight=0.5, leave_one_out=0)
    past = Baseline(Running(0.0, 9), {})
    samples = [sample(1, weight=0.25), sample(-1), sample(0)]
    assert binary(samples, past, settings).advantages == pytest.approx((0.25, -0.5, 0))


def test_running_mean_is_plain_then_forgets() -> None:
    mean = Running()
    for value in (1.0, 0.0, 2.0):
        mean = mean.plus(value, horizon=3)
    assert mean == Running(1.0, 3)
    assert mean.plus(4.0, horizon=3) == Running(2.0, 3)


def test_the_given_baseline_is_left_alone_and_the_next_one_survives_json() -> None:
    before = Baseline()
    after = binary([sample(1, "ann"), sample(-1, "bob")], before, PLAIN).baseline
    assert before == Baseline()
    assert after.users == {"ann": Running(1.0, 1), "bob": Running(-1.0, 1)}
    assert Baseline.restore(json.loads(json.dumps(after.dump()))) == after


def test_the_users_seen_last_are_kept() -> None:
    settings = CreditSettings(max_users=2)
    seen = binary([sample(1, name) for name in ("a", "b", "a", "c")], Baseline(), settings)
    assert list(seen.baseline.users) == ["a", "c"]
