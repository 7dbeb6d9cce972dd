"""Losses against numbers worked out by hand, an independent loop, and finite differences."""

import math
import random
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from trainer.config import LossSettings
from trainer.losses import (
    Size,
    Tokens,
    aggregate,
    bounded,
    clipped,
    effective_share,
    entropy,
    in_reward,
    kl_estimate,
    kl_exact,
    kl_moved,
    log_linear,
    measure,
    opsm,
    policy_loss,
    ratio,
    raw_weights,
    taught_advantages,
    topk_reverse_kl,
    veto,
    with_rest,
)


def vector(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def tokens(current: Tensor, **given: Tensor) -> Tokens:
    fields: dict[str, Tensor] = {
        "proximal": current.detach(), "behaviour": current.detach(),
        "advantages": torch.ones_like(current), "entropy": torch.zeros_like(current),
        "samples": torch.arange(len(current)), "lags": torch.zeros_like(current), **given,
    }  # fmt: skip
    return Tokens(current=current, **fields)


LN2 = math.log(2)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "loss", "gradient"),
    [
        (0.0, 1.0, -1.0, -1.0),
        (0.0, -1.0, 1.0, 1.0),
        (LN2, 1.0, -1.28, 0.0),  # gained enough: the clip at 1.28 ends it
        (LN2, -1.0, 2.0, 2.0),  # went the wrong way: no clip
        (-LN2, 1.0, -0.5, -0.5),
        (-LN2, -1.0, 0.8, 0.0),  # lost enough: the clip at 0.8 ends it
        (math.log(1.25), 2.0, -2.5, -2.5),  # between 1.2 and 1.28: still inside
    ],
)
def test_clipped_surrogate(
    log_ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    current = vector(-3 + log_ratio, grad=True)
    value = clipped(current, vector(-3.0), vector(advantage), low=0.2, high=0.28)
    assert value.item() == pytest.approx(loss)
    value.sum().backward()
    assert current.grad is not None
    assert current.grad.item() == pytest.approx(gradient)


def test_dual_clip_bounds_negatives_only() -> None:
    current = vector(math.log(10), math.log(10), math.log(0.1))
    loss = clipped(current, vector(0, 0, 0), vector(-1, 1, -1), low=0.2, high=0.28, dual=3.0)
    assert loss.tolist() == pytest.approx([3.0, -1.28, 0.8])


#: Two samples of two tokens and one of one; ratios 2, 1/2 | 3, 3 | 1/4.
PROXIMAL = (LN2, 0.0, math.log(3), 0.0, 0.0)
BEHAVIOUR = (0.0, LN2, 0.0, -math.log(3), math.log(4))
OWNERS = torch.tensor([7, 7, 2, 2, 9])


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [2, 0.5, 3, 3, 0.25]),
        ("sequence", [1, 1, 9, 9, 0.25]),
        ("geometric", [1, 1, 3, 3, 0.25]),
    ],
)
def test_importance_weights_at_each_level(level: str, expected: list[float]) -> None:
    proximal = vector(*PROXIMAL, grad=True)
    raw = raw_weights(proximal, vector(*BEHAVIOUR), OWNERS, level)  # type: ignore[arg-type]
    assert raw.tolist() == pytest.approx(expected)
    assert not raw.requires_grad


def test_a_thousand_tokens_slightly_off_are_far_off_as_a_sequence() -> None:
    proximal = torch.full((1000,), math.log(1.01), dtype=torch.float64)
    behaviour, owners = torch.zeros_like(proximal), torch.zeros(1000, dtype=torch.int64)
    sequence = raw_weights(proximal, behaviour, owners, "sequence")
    geometric = raw_weights(proximal, behaviour, owners, "geometric")
    assert sequence[0].item() == pytest.approx(20_959, rel=1e-4)
    assert geometric[0].item() == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("truncate", [0.5, 0.5, 1, 2, 2]),
        ("mask", [0, 0.5, 1, 2, 0]),
        ("none", [1, 1, 1, 1, 1]),
    ],
)
def test_bounds_on_importance_weights(action: str, expected: list[float]) -> None:
    weights = vector(0.1, 0.5, 1, 2, 10)
    found = bounded(weights, action, floor=0.5, cap=2.0)  # type: ignore[arg-type]
    assert found.tolist() == expected


def test_truncation_at_one_token_by_hand() -> None:
    raw = raw_weights(vector(-1, -1, -1), vector(-1 - LN2 / 2, -3.0, 1.0), OWNERS[:3], "token")
    weight = bounded(raw, "truncate", floor=0, cap=2.0)
    assert weight.tolist() == pytest.approx([math.sqrt(2), 2.0, math.exp(-2)])


def test_one_heavy_weight_is_worth_few_samples() -> None:
    assert effective_share(vector(1, 1, 1, 10)).item() * 4 == pytest.approx(1.64, abs=0.005)


def test_opsm_leaves_out_disliked_samples_that_were_left_behind() -> None:
    behaviour = vector(-1, -1, -1, -1, -1)
    # Means of behaviour - current: 0.3 in the first, 0.3 in the second, 0.1 in the third.
    current = vector(-1.1, -1.5, -1.3, -1.3, -1.1)
    keep = opsm(current, behaviour, vector(-1, -1, 1, 1, -1), OWNERS, 0.2)
    assert keep.tolist() == [False, False, True, True, True]
    assert opsm(current, behaviour, vector(-1, -1, 1, 1, -1), OWNERS, 0.31).all()


def test_veto_takes_the_whole_sample() -> None:
    behaviour = vector(0, 0, 0, 0, 0)
    proximal = vector(0, math.log(0.9e-4), math.log(1.1e-4), 0, 0)
    keep = veto(proximal, behaviour, OWNERS, 1e-4)
    assert keep.tolist() == [False, False, True, True, True]


def test_log_linear_by_hand() -> None:
    # Lag 0: the behaviour policy itself; 1: half way; 3: three quarters.
    current = vector(-2, -2, -2, grad=True)
    proximal = log_linear(current, vector(-1, -1, -1), vector(0, 1, 3))
    assert proximal.tolist() == pytest.approx([-1, -1.5, -1.75])
    assert not proximal.requires_grad


def test_entropy_by_hand() -> None:
    assert entropy(vector(0.5, 0.25, 0.25).log()[None]).item() == pytest.approx(1.5 * LN2)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", (1 + 2 + 3 + 4 + 5) / (4 * 10)),
        ("token_mean", 15 / 6),
        ("sequence_mean", ((1 + 2) / 2 + (3 + 4) / 2 + 5) / 4),
    ],
)
def test_aggregates_by_hand(kind: str, expected: float) -> None:
    # A fourth sample of one token is in another micro-batch: it counts in every denominator.
    losses = vector(1, 2, 3, 4, 5)
    found = aggregate(losses, OWNERS, kind, Size(4, 6), 10)  # type: ignore[arg-type]
    assert found.item() == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["constant", "token_mean", "sequence_mean"])
def test_rejection_leaves_the_denominator_alone(kind: str) -> None:
    """Two samples alike; with one of them vetoed the loss is half, not the same."""
    current = vector(-1, -1)
    config = LossSettings(kl_coef=0, aggregate=kind, reference_length=1)
    loss = policy_loss(config, Size(2, 2))
    whole = loss(tokens(current)).item()
    rejected = loss(tokens(current, behaviour=vector(-1, 20))).item()
    assert whole == pytest.approx(-1)
    assert rejected == pytest.approx(-0.5)


def test_top_k_bins_by_hand() -> None:
    student, teacher = vector(0.5, 0.2).log()[None], vector(0.25, 0.25).log()[None]
    assert with_rest(student).exp()[0].tolist() == pytest.approx([0.5, 0.2, 0.3])
    expected = 0.5 * LN2 + 0.2 * math.log(0.8) + 0.3 * math.log(0.6)
    assert topk_reverse_kl(student, teacher).item() == pytest.approx(expected)


def test_top_k_bounds_the_whole_divergence_and_reaches_it() -> None:
    torch.manual_seed(2)
    student, teacher = torch.log_softmax(torch.randn(2, 9, dtype=torch.float64), -1)
    whole = kl_exact(student[None], teacher[None]).item()
    found = [topk_reverse_kl(student[None, :k], teacher[None, :k]).item() for k in range(1, 9)]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(whole)  # eight of nine and the rest: nothing is merged
    assert found[0] < whole


def test_top_k_of_everything_is_finite() -> None:
    everything = vector(0.7, 0.3).log()[None].requires_grad_()
    value = topk_reverse_kl(everything, vector(0.3, 0.7).log()[None])
    value.sum().backward()
    assert value.isfinite().all()
    assert everything.grad is not None
    assert everything.grad.isfinite().all()


def test_ratios_stay_finite() -> None:
    assert ratio(vector(0, -1e6), vector(-1e6, 0)).isfinite().all()


def test_exact_kl_by_hand() -> None:
    policy, reference = vector(0.75, 0.25).log(), vector(0.5, 0.5).log()
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert kl_exact(policy[None], reference[None]).tolist() == pytest.approx([expected])


@pytest.mark.parametrize(
    ("kind", "expected"), [("k1", LN2), ("k2", LN2**2 / 2), ("k3", 0.5 - 1 + LN2)]
)
def test_kl_estimates_by_hand(kind: str, expected: float) -> None:
    value = kl_estimate(kind, vector(math.log(0.5)), vector(math.log(0.25)))
    assert value.tolist() == pytest.approx([expected])


def test_k1_and_k3_are_unbiased() -> None:
    policy, reference = vector(0.6, 0.3, 0.1).log(), vector(0.2, 0.3, 0.5).log()
    exact = kl_exact(policy[None], reference[None]).item()
    for kind in ("k1", "k3"):
        mean = (policy.exp() * kl_estimate(kind, policy, reference)).sum().item()
        assert mean == pytest.approx(exact)


def test_the_divergence_moved_is_never_negative_and_exact_in_the_mean() -> None:
    old, new = vector(0.6, 0.3, 0.1).log(), vector(0.2, 0.3, 0.5).log()
    moved = kl_moved(new, old)
    assert (moved >= 0).all()
    assert (old.exp() * moved).sum().item() == pytest.approx(kl_exact(new[None], old[None]).item())


def test_k1_in_the_reward_has_the_gradient_of_the_divergence() -> None:
    """Score function times -(-k1), in expectation, against autograd of the exact KL."""
    logits = vector(0.3, -0.2, 0.9, grad=True)
    reference = vector(0.2, 0.3, 0.5).log()
    log = torch.log_softmax(logits, -1)
    gains = in_reward(vector(0, 0, 0), "k1", 1.0, log.detach(), reference)
    (found,) = torch.autograd.grad(-(log.exp().detach() * gains * log).sum(), logits)
    (exact,) = torch.autograd.grad(
        kl_exact(torch.log_softmax(logits, -1)[None], reference[None]).sum(), logits
    )
    assert found.tolist() == pytest.approx(exact.tolist())


def test_unknown_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match="k9"):
        kl_estimate("k9", vector(0), vector(0))


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("action", ["truncate", "mask"])
@pytest.mark.parametrize("kind", ["constant", "token_mean", "sequence_mean"])
def test_step_loss_equals_an_independent_loop(level: str, action: str, kind: str) -> None:
    rng = random.Random(4)
    samples = [
        [[rng.uniform(-2, -0.1) for _ in range(4)] for _ in range(rng.randint(1, 6))]
        for _ in range(12)
    ]
    gains = [rng.uniform(-2, 2) for _ in samples]
    count = sum(len(rows) for rows in samples)
    total, skipped = 0.0, 0
    for rows, gain in zip(samples, gains, strict=True):
        logs = [proximal - behaviour for _, proximal, behaviour, _ in rows]
        left = sum(row[2] - row[0] for row in rows) / len(rows)
        skip = (gain < 0 and left > 0.2) or min(logs) < math.log(0.3)
        skipped += skip
        for (current, proximal, _, reference), log in zip(rows, logs, strict=True):
            exponent = {
                "token": log, "sequence": sum(logs), "geometric": sum(logs) / len(logs)
            }[level]  # fmt: skip
            weight = math.exp(exponent)
            if action == "truncate":
                weight = min(max(weight, 0.4), 2.0)
            elif not 0.4 <= weight <= 2.0:
                weight = 0.0
            rho = math.exp(current - proximal)
            surrogate = max(-rho * gain, -min(max(rho, 0.8), 1.28) * gain)
            gap = reference - current
            value = (0 if skip else weight * surrogate) + 0.1 * (math.exp(gap) - 1 - gap)
            total += value / {
                "constant": 12 * 40, "token_mean": count, "sequence_mean": 12 * len(rows)
            }[kind]  # fmt: skip
    assert 0 < skipped < 12
    flat = [row for rows in samples for row in rows]
    current, proximal, behaviour, reference = (vector(*c) for c in zip(*flat, strict=True))
    config = LossSettings(
        kl="k3", kl_coef=0.1, veto=0.3, importance=action, importance_level=level,
        importance_floor=0.4, aggregate=kind,
    )  # fmt: skip
    loss = policy_loss(config, Size(12, count))(
        tokens(
            current,
            proximal=proximal,
            behaviour=behaviour,
            reference=reference,
            advantages=vector(*[g for rows, g in zip(samples, gains, strict=True) for _ in rows]),
            samples=torch.tensor([i for i, rows in enumerate(samples) for _ in rows]),
        )
    )
    assert loss.item() == pytest.approx(total)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"importance_level": "sequence", "aggregate": "token_mean"},
        {"importance_level": "geometric", "aggregate": "sequence_mean", "dual_clip": 3.0},
        {"kl": "k2", "entropy_coef": 0.2},
        {"kl": "k3", "importance": "mask"},
        {"kl": "k1", "kl_place": "reward", "entropy_coef": 0.1},
    ],
)
def test_gradient_equals_finite_differences(changes: dict[str, Any]) -> None:
    """Through log-softmax, importance weights, clip, KL and entropy at once."""
    torch.manual_seed(0)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    behind = torch.log_softmax(torch.randn(6, 5, dtype=torch.float64), -1)
    ahead = torch.log_softmax(logits.detach() + 0.1 * torch.randn(6, 5, dtype=torch.float64), -1)
    targets = torch.tensor([0, 1, 2, 3, 4, 0])[:, None]
    advantages = vector(1, -1, 0.5, -2, 1.5, -0.3)
    config = LossSettings(**{"kl_coef": 0.3, "opsm_delta": None, **changes})
    loss = policy_loss(config, Size(2, 6))

    def value(x: Tensor) -> Tensor:
        log = torch.log_softmax(x / 0.8, -1)
        return loss(
            Tokens(
                current=log.gather(-1, targets)[:, 0],
                proximal=ahead.gather(-1, targets)[:, 0],
                behaviour=behind.gather(-1, targets)[:, 0],
                advantages=advantages,
                entropy=entropy(log),
                samples=torch.tensor([0, 0, 0, 1, 1, 1]),
                lags=torch.zeros(6),
                reference=behind.gather(-1, targets)[:, 0],
                kl=kl_exact(log, behind),
            )
        )

    value(logits).backward()
    assert logits.grad is not None
    step = 1e-6
    for row in range(6):
        for column in range(5):
            shift = torch.zeros(6, 5, dtype=torch.float64)
            shift[row, column] = step
            with torch.no_grad():
                slope = (value(logits + shift) - value(logits - shift)) / (2 * step)
            assert logits.grad[row, column].item() == pytest.approx(slope.item(), abs=1e-7)


def test_parts_sum_to_the_whole() -> None:
    current = vector(-1, -2, -3, -0.5)
    advantages = vector(1, -1, 0.5, 2)
    loss = policy_loss(LossSettings(kl_coef=0), Size(5, 4))
    whole = loss(tokens(current, advantages=advantages))
    parts = [loss(tokens(current[s], advantages=advantages[s])) for s in (slice(1), slice(1, 4))]
    assert sum(parts).item() == pytest.approx(whole.item())


@pytest.mark.parametrize(
    ("advantage", "lag", "loss", "gradient"),
    [
        # Half way from -1 to -2 lies -1.5: the ratio is e^-0.5 = 0.607, and so is the weight.
        (1.0, 1.0, -math.exp(-1), -math.exp(-1)),
        (-1.0, 1.0, 0.8 * math.exp(-0.5), 0.0),  # the clip at 0.8 ends it, with one minibatch
        # What is not stale has its own policy for the proximal one: all of it is in the ratio.
        (1.0, 0.0, -math.exp(-1), -math.exp(-1)),
    ],
)
def test_with_a_log_linear_proximal_policy_clips_act_on_what_is_stale(
    advantage: float, lag: float, loss: float, gradient: float
) -> None:
    current = vector(-2, grad=True)
    settings = LossSettings(
        proximal="log_linear", kl_coef=0, opsm_delta=None, veto=None, reference_length=1
    )
    seen = tokens(current, behaviour=vector(-1), advantages=vector(advantage), lags=vector(lag))
    value = policy_loss(settings, Size(1, 1))(seen)
    assert value.item() == pytest.approx(loss)
    value.backward()
    assert current.grad is not None
    assert current.grad.item() == pytest.approx(gradient)
    assert measure(settings, seen)["clip_fraction"] == (advantage < 0)
    # A measured one is the current policy: nothing is clipped, and the weight has all of it.
    plain = settings.model_copy(update={"proximal": "forward"})
    assert measure(plain, seen)["clip_fraction"] == 0
    assert policy_loss(plain, Size(1, 1))(seen).item() == pytest.approx(-advantage * math.exp(-1))


def test_what_a_teacher_adds_by_hand() -> None:
    teacher, student = vector(-0.5, -5, -0.1, -9), vector(-1, -1, -4, -1)
    found = taught_advantages(vector(1, 1, 0, -1), vector(1, 1, 0.5, 0), teacher, student, 2.0)
    # Differences 0.5, -4 and 3.9 within ±2; the last token has no teacher.
    assert found.tolist() == pytest.approx([1.5, -1, 1, -1])


def test_a_teacher_equal_to_the_student_teaches_nothing_only_at_one_temperature() -> None:
    """Logits 2 and 0: scored at temperature 1, but sampled at 0.6, the same policy looks biased."""
    logits, nothing, one = vector(2, 0), vector(0, 0), vector(1, 1)
    teacher, hot = logits.log_softmax(-1), (logits / 0.6).log_softmax(-1)
    assert taught_advantages(nothing, one, teacher, teacher, 2.0).tolist() == [0, 0]
    assert taught_advantages(nothing, one, teacher, hot, 2.0).tolist() == pytest.approx(
        [-0.09, 1.24], abs=0.005
    )


def test_the_teachers_part_of_the_loss_by_hand() -> None:
    current = vector(-1, -2, grad=True)
    taught = {
        "advantages": vector(0.5, 0.5), "teacher": vector(-0.25, 0), "student": vector(-1.25, -2),
        "taught": vector(2, 0), "distilled": vector(0, 0.3), "distils": vector(0, 4),
    }  # fmt: skip
    settings = LossSettings(kl_coef=0, opsm_delta=None, reference_length=1)
    value = policy_loss(settings, Size(1, 2))(tokens(current, **taught))
    # Of the first token -0.5 less twice its difference of 1, of the second -0.5, and 4 * 0.3.
    assert value.item() == pytest.approx(-1.8)
    (gradient,) = torch.autograd.grad(value, current)
    assert gradient.tolist() == pytest.approx([-2.5, -0.5])
    found = measure(settings, tokens(current, **taught))
    assert found["taught"] == 1
    assert found["opd_reverse_kl"] == pytest.approx(-3 / 2)
    assert found["opd_clipped"] == 0
    assert found["distilled_kl"] == pytest.approx(0.3)


def test_sequence_masks_see_what_the_teacher_says() -> None:
    seen = tokens(
        vector(-2), behaviour=vector(-1), advantages=vector(0.5), teacher=vector(-4),
        student=vector(-3), taught=vector(1), distils=vector(0),
    )  # fmt: skip
    # 0.5 - 1 is a dislike, of a reply that the policy has left by a nat.
    assert measure(LossSettings(), seen)["masked"] == 1


def test_rows_with_fewer_tokens_are_as_if_alone() -> None:
    student, teacher = vector(0.5, 0.2).log()[None], vector(0.25, 0.5).log()[None]
    expected = topk_reverse_kl(student, teacher)
    wide = torch.cat([student, vector(-0.7)[None]], 1).requires_grad_()
    padded = torch.cat([teacher, vector(-math.inf)[None]], 1)
    value = topk_reverse_kl(wide, padded)
    assert value.item() == pytest.approx(expected.item())
    (gradient,) = torch.autograd.grad(value.sum(), wide)
    assert torch.isfinite(gradient).all()
    assert gradient[0, 2] == 0
    empty = topk_reverse_kl(torch.full((1, 2), -0.7), torch.full((1, 2), -math.inf))
    assert empty.item() == 0


def test_metrics_by_hand() -> None:
    seen = tokens(
        vector(-1, -1, -1, -1 + math.log(1.5)),
        proximal=vector(-1, -1, -1, -1),
        behaviour=vector(-1, -1, -1, -1 - math.log(10)),
        advantages=vector(1, 1, -1, 1),
        entropy=vector(1, 2, 3, 4),
        reference=vector(-1, -1, -1, -1 + math.log(1.5)),
        kl=vector(0, 0, 0, 0.4),
    )
    values = measure(LossSettings(), seen)
    assert next(iter(values)) == "logprob_diff_mean"
    assert values["logprob_diff_mean"] == pytest.approx(math.log(10) / 4)
    # k3 of KL(behaviour || proximal) with d = -ln 10: 10 - 1 - ln 10, nothing elsewhere.
    assert values["mismatch_kl"] == pytest.approx((9 - math.log(10)) / 4)
    assert (values["mismatch_kl_masked"], values["vetoed"], values["opsm"]) == (0, 0, 0)
    assert values["importance_max"] == pytest.approx(10)
    assert values["importance_min"] == pytest.approx(1)
    assert values["importance_away"] == pytest.approx(9 / 4)
    assert values["chi2_token"] == pytest.approx(103 / 4 - 1)
    assert values["ppo_kl"] == pytest.approx(-math.log(1.5) / 4)
    assert (values["ratio_min"], values["ratio_max"]) == pytest.approx((1, 1.5))
    assert values["importance_capped"] == pytest.approx(0.25)
    assert values["ess"] == pytest.approx(13**2 / 103 / 4)  # weights 1, 1, 1, 10
    assert values["clip_fraction"] == pytest.approx(0.25)
    assert values["entropy"] == pytest.approx(2.5)
    assert values["kl"] == pytest.approx(0.1)
    assert values["kl_k3"] == pytest.approx(0)
    assert values["nll"] == pytest.approx((4 - math.log(1.5)) / 4)


def test_metrics_tell_what_the_masks_left_out() -> None:
    seen = tokens(
        vector(-2, -2, -1), behaviour=vector(-1, -1, -1), advantages=vector(-1, -1, 1),
        samples=torch.tensor([0, 0, 1]),
    )  # fmt: skip
    assert measure(LossSettings(), seen)["masked"] == pytest.approx(2 / 3)
    assert measure(LossSettings(opsm_delta=None), seen)["masked"] == 0


@pytest.mark.parametrize(
    "changes", [{"kl_place": "reward"}, {"importance_floor": 3.0}, {"opsm_delta": -1.0}]
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LossSettings(**changes)


def test_metrics_of_nothing() -> None:
    assert measure(LossSettings(), tokens(vector())) == {"tokens": 0.0}
