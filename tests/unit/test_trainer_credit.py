"""Advantages against values worked out by hand."""

import json
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.records import FinishReason, Teaching, TrainingSample
from trainer.config import CreditSettings
from trainer.credit import (
    Baseline,
    Running,
    assign,
    discounted,
    grouped,
    returns,
    rule_shares,
)


def sample(
    score: float,
    user: str = "ann",
    weight: float = 1.0,
    rule: str | None = None,
    group: str | None = None,
) -> TrainingSample:
    return TrainingSample(
        id=UUID(int=1), turn_id=UUID(int=2), session_id=UUID(int=3), user=user, score=score,
        weight=weight, prompt_ids=(1,), sampled_ids=(2,), logprobs=(-0.5,), spans=(),
        temperature=1.0, finish_reason=FinishReason.STOP, arrived_at=0.0,
        rule=rule, group=group,
    )  # fmt: skip


PLAIN = CreditSettings(user_prior=0, negative_weight=1)


def test_nothing_is_expected_before_the_first_batch() -> None:
    # Others of the first: (1 - 1 - 1) / 3 = -1/3; of a -1: (1 + 1 - 1) / 3 = 1/3. Half of it.
    credit = assign([sample(s) for s in (1, 1, -1, -1)], Baseline(), PLAIN)
    assert credit.advantages == pytest.approx((7 / 6, 7 / 6, -7 / 6, -7 / 6))


def test_a_first_batch_that_is_all_negative_pushes_by_half() -> None:
    """Neither by the raw scores nor, as with them normalised, not at all."""
    assert assign([sample(-1)] * 4, Baseline(), PLAIN).advantages == pytest.approx((-0.5,) * 4)


def test_half_leave_one_out_half_running_mean() -> None:
    past = Baseline(Running(0.5, 10), {"ann": Running(0.5, 10)})
    # Others of the first: -1, so its baseline is (-1 + 0.5) / 2; of the second (1 + 0.5) / 2.
    credit = assign([sample(1), sample(-1)], past, PLAIN)
    assert credit.advantages == pytest.approx((1.25, -1.75))


def test_all_negative_scores_push_little_after_a_history_of_them() -> None:
    past = Baseline(Running(-1.0, 50), {"ann": Running(-1.0, 50)})
    assert assign([sample(-1)] * 3, past, PLAIN).advantages == pytest.approx((0, 0, 0))


def test_a_lone_score_is_compared_with_the_past_and_never_lost() -> None:
    past = Baseline(Running(-0.5, 8), {})
    assert assign([sample(1)], past, PLAIN).advantages == pytest.approx((1.5,))
    assert assign([sample(-1)], Baseline(), PLAIN).advantages == pytest.approx((-1,))


def test_a_users_mean_outweighs_the_overall_as_their_scores_come_in() -> None:
    past = Baseline(Running(0.0, 64), {"ann": Running(1.0, 4)})
    assert past.expected("ann", prior=4) == pytest.approx(0.5)
    assert past.expected("bob", prior=4) == pytest.approx(0.0)
    assert past.expected("ann", prior=12) == pytest.approx(0.25)
    assert Baseline().expected("ann", prior=4) == 0


def test_weights_and_zero_scores() -> None:
    settings = CreditSettings(negative_weight=0.5, leave_one_out=0)
    past = Baseline(Running(0.0, 9), {})
    samples = [sample(1, weight=0.25), sample(-1), sample(0)]
    assert assign(samples, past, settings).advantages == pytest.approx((0.25, -0.5, 0))


def test_running_mean_is_plain_then_forgets() -> None:
    mean = Running()
    for value in (1.0, 0.0, 2.0):
        mean = mean.plus(value, horizon=3)
    assert mean == Running(1.0, 3)
    assert mean.plus(4.0, horizon=3) == Running(2.0, 3)


def test_the_given_baseline_is_left_alone_and_the_next_one_survives_json() -> None:
    before = Baseline()
    after = assign([sample(1, "ann"), sample(-1, "bob")], before, PLAIN).baseline
    assert before == Baseline()
    assert after.users == {"ann": Running(1.0, 1), "bob": Running(-1.0, 1)}
    assert Baseline.restore(json.loads(json.dumps(after.dump()))) == after


def test_the_users_seen_last_are_kept() -> None:
    settings = CreditSettings(max_users=2)
    seen = assign([sample(1, name) for name in ("a", "b", "a", "c")], Baseline(), settings)
    assert list(seen.baseline.users) == ["a", "c"]


def test_a_disliked_reply_counts_half() -> None:
    credit = assign([sample(1), sample(-1)], Baseline(), CreditSettings())
    assert credit.advantages == pytest.approx((1.5, -0.75))


def test_groups_by_hand() -> None:
    scores, keys = [1, -1, -1, 1, -1], ["a", "a", "a", "b", None]
    # Group a has mean -1/3 and a sample deviation of sqrt((16/9 + 4/9 + 4/9) / 2) = 1.1547.
    assert grouped(scores, keys, "mean").advantages == pytest.approx(
        (4 / 3, -2 / 3, -2 / 3, None, None)
    )
    assert grouped(scores, keys, "leave_one_out").advantages == pytest.approx(
        (2, -1, -1, None, None)
    )
    assert grouped(scores, keys, "std").advantages == pytest.approx(
        (1.154700, -0.577350, -0.577350, None, None), abs=1e-5
    )


@pytest.mark.parametrize("against", ["mean", "std", "leave_one_out"])
def test_groups_of_equal_scores_train_nothing_and_are_counted(against: str) -> None:
    scores, keys = [1, 1, -1, -1, -1, 0.5], ["a", "a", "b", "b", "b", "c"]
    found = grouped(scores, keys, against)  # type: ignore[arg-type]
    assert found.advantages == (0, 0, 0, 0, 0, None)
    assert found.flat == 2


def test_no_verdict_is_in_no_group() -> None:
    settings = CreditSettings(method="grpo", against="mean", negative_weight=1, leave_one_out=0)
    past = Baseline(Running(0.25, 9), {})
    # Of the first group 1 and -1 are left, of the second a reply that is alone.
    batch = [sample(s, group="a") for s in (1, 0, 0, -1)] + [sample(s, group="b") for s in (1, 0)]
    credit = assign(batch, past, settings)
    assert credit.advantages == pytest.approx((1, 0, 0, -1, 0.75, 0))
    assert credit.flat_groups == 0


def test_a_verdict_that_is_worth_0_with_what_followed_is_still_compared() -> None:
    settings = CreditSettings(method="grpo", discount=1.0, negative_weight=1)
    disliked, liked = (replace(sample(s, group="a"), depth=0) for s in (-1.0, 1.0))
    batch = [disliked, liked, replace(sample(1), depth=1)]
    assert returns(batch, 1.0) == [0, 2, 1]
    assert assign(batch, Baseline(), settings).advantages[:2] == pytest.approx((-2, 2))


def test_grpo_compares_siblings_and_leaves_the_rest_to_the_baseline() -> None:
    settings = CreditSettings(method="grpo", negative_weight=1, leave_one_out=0)
    past = Baseline(Running(-0.5, 9), {})
    samples = [sample(1, group="a"), sample(-1, group="a"), sample(1, group="b"), sample(-1)]
    samples += [sample(-1, group="c"), sample(-1, group="c")]
    credit = assign(samples, past, settings)
    assert credit.advantages == pytest.approx((2, -2, 1.5, -0.5, 0, 0))
    assert credit.flat_groups == 1


def test_discount_by_hand() -> None:
    assert discounted([1, -1, 1], [0, 1, 2], 0.5) == pytest.approx([0.75, -0.5, 1])
    # Turn 1 is missing: it scored 0.
    assert discounted([0, 1], [0, 2], 0.5) == pytest.approx([0.25, 1])
    assert discounted([1, -1, 1], [0, 1, 2], 0) == [1, -1, 1]
    assert discounted([], [], 0.9) == []
    with pytest.raises(ValueError, match="rise"):
        discounted([1, 1], [2, 2], 0.5)


def test_returns_look_forward_within_a_session_only() -> None:
    first, second, third = (replace(sample(s), depth=d) for d, s in enumerate((1.0, -1.0, 1.0)))
    other = replace(sample(-1), session_id=UUID(int=7), depth=1)
    batch = [third, other, first, second]
    assert returns(batch, 0.5) == pytest.approx([1, -1, 0.75, -0.5])
    assert returns(batch, 0) == [1, -1, 1, -1]


def test_replies_to_one_request_share_what_followed_and_no_verdict_stays_none() -> None:
    liked, disliked = replace(sample(1), depth=0), replace(sample(-1), depth=0)
    silent, last = replace(sample(0), depth=1), replace(sample(1), depth=2)
    # What comes after depth 0 is 0.5 * (0 + 0.5 * 1), for either reply.
    assert returns([liked, disliked, silent, last], 0.5) == pytest.approx([1.25, -0.75, 0, 1])


def test_discounted_returns_are_what_is_compared() -> None:
    settings = CreditSettings(discount=0.5, negative_weight=1, leave_one_out=0)
    past = Baseline(Running(0.25, 9), {})
    batch = [replace(sample(1), depth=0), replace(sample(-1), depth=1)]
    credit = assign(batch, past, settings)
    assert credit.advantages == pytest.approx((0.5 - 0.25, -1.25))
    assert credit.baseline.overall.mean == pytest.approx((0.25 * 9 + 0.5 - 1) / 11)


def teaching() -> Teaching:
    return Teaching(
        teacher="base", lineage_id=None, version=0, model="m", hint="h", prompt_len=3,
        logprobs=(-0.1,),
    )  # fmt: skip


def test_what_scores_and_teachers_count_by_method() -> None:
    hinted = replace(sample(-1, weight=0.5), teaching=teaching())
    batch = [hinted, sample(1), replace(sample(0), teaching=teaching())]
    plain = {"negative_weight": 1, "leave_one_out": 0, "user_prior": 0}
    past = Baseline(Running(0.0, 9), {})
    found = assign(batch, past, CreditSettings(method="combined", w_rl=0.5, w_opd=2.0, **plain))
    assert found.advantages == pytest.approx((-0.25, 0.5, 0))
    assert found.taught == pytest.approx((1.0, 0, 2.0))  # 0 without a hint
    found = assign(batch, past, CreditSettings(method="opd", w_opd=2.0, **plain))
    assert found.advantages == (0, 0, 0)
    assert found.taught == pytest.approx((1.0, 0, 2.0))
    assert assign(batch, past, CreditSettings(**plain)).taught is None


def test_no_verdict_is_in_no_baseline() -> None:
    # The others of each are the other one alone; the 0 counts in no mean.
    credit = assign([sample(1), sample(0), sample(-1)], Baseline(), PLAIN)
    assert credit.advantages == pytest.approx((1.5, 0, -1.5))
    assert credit.baseline.overall == Running(0.0, 2)


def test_a_rule_gives_at_most_half_of_the_positives() -> None:
    samples = [sample(1, rule="thanks")] * 6 + [sample(1, rule="praise"), sample(1)]
    samples.append(sample(-1, rule="redo"))
    shares = rule_shares(samples, 0.5)
    assert shares == pytest.approx([1 / 3] * 6 + [1, 1, 1])
    assert sum(shares[:6]) == pytest.approx(sum(shares[6:8]))
    assert rule_shares(samples, 0.75) == pytest.approx([1] * 9)
    assert rule_shares(samples, 1.0) == [1] * 9


def test_a_rule_alone_counts_as_one_sample() -> None:
    assert rule_shares([sample(1, rule="thanks")] * 4, 0.5) == pytest.approx([0.25] * 4)
    assert rule_shares([sample(1, rule="thanks")], 0.5) == [1]
    # What judges read is no rule's.
    assert rule_shares([sample(1)] * 4, 0.5) == [1] * 4


def test_what_was_held_back_is_told() -> None:
    samples = [sample(1, rule="thanks")] * 3 + [sample(1, rule="praise"), sample(-1)]
    settings = CreditSettings(leave_one_out=0)
    past = Baseline(Running(0.0, 9), {})
    credit = assign(samples, past, settings)
    assert credit.advantages == pytest.approx((1 / 3, 1 / 3, 1 / 3, 1, -0.5))
    assert credit.held == pytest.approx(0.5)
