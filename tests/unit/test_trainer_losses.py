"""Losses against numbers worked out by hand, an independent loop, and finite differences."""

import math
import random

import pytest
import torch
from torch import Tensor

from trainer.config import LossSettings
from trainer.losses import (
    Tokens,
    clipped,
    importance,
    kl_estimate,
    kl_exact,
    measure,
    policy_loss,
    ratio,
)


def vector(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def tokens(current: Tensor, **given: Tensor) -> Tokens:
    fields: dict[str, Tensor] = {
        "proximal": current.detach(), "behaviour": current.detach(),
        "advantages": torch.ones_like(current), "entropy": torch.zeros_like(current), **given,
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


def test_importance_is_truncated_above_and_carries_no_gradient() -> None:
    proximal = vector(-1.0, -1.0, -1.0, grad=True)
    weight = importance(proximal, vector(-1 - LN2 / 2, -3.0, 1.0), 2.0)
    assert weight.tolist() == pytest.approx([math.sqrt(2), 2.0, math.exp(-2)])
    assert not weight.requires_grad


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


def test_unknown_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match="k9"):
        kl_estimate("k9", vector(0), vector(0))


def test_step_loss_equals_an_independent_loop() -> None:
    rng = random.Random(4)
    rows = [[rng.uniform(-4, -0.1) for _ in range(4)] + [rng.uniform(-2, 2)] for _ in range(40)]
    total = 0.0
    for current, proximal, behaviour, reference, advantage in rows:
        rho = math.exp(current - proximal)
        surrogate = max(-rho * advantage, -min(max(rho, 0.8), 1.28) * advantage)
        gap = reference - current
        k3 = min(math.exp(gap) - 1 - gap, 10)
        total += min(math.exp(proximal - behaviour), 2.0) * surrogate + 0.1 * k3
    columns = [vector(*column) for column in zip(*rows, strict=True)]
    given = dict(
        zip(("proximal", "behaviour", "reference", "advantages"), columns[1:], strict=True)
    )
    loss = policy_loss(LossSettings(kl="k3", kl_coef=0.1), samples=3)(tokens(columns[0], **given))
    assert loss.item() == pytest.approx(total / (3 * 40))


def test_gradient_equals_finite_differences() -> None:
    """Through log-softmax, importance weights, clip and exact KL at once."""
    torch.manual_seed(0)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    behind = torch.log_softmax(torch.randn(6, 5, dtype=torch.float64), -1)
    ahead = torch.log_softmax(logits.detach() + 0.1 * torch.randn(6, 5, dtype=torch.float64), -1)
    targets = torch.tensor([0, 1, 2, 3, 4, 0])[:, None]
    advantages = vector(1, -1, 0.5, -2, 1.5, -0.3)
    loss = policy_loss(LossSettings(kl_coef=0.3), samples=2)

    def value(x: Tensor) -> Tensor:
        log = torch.log_softmax(x / 0.8, -1)
        return loss(
            Tokens(
                current=log.gather(-1, targets)[:, 0],
                proximal=ahead.gather(-1, targets)[:, 0],
                behaviour=behind.gather(-1, targets)[:, 0],
                advantages=advantages,
                entropy=torch.zeros(6),
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
    loss = policy_loss(LossSettings(kl_coef=0), samples=5)
    whole = loss(tokens(current, advantages=advantages))
    parts = [loss(tokens(current[s], advantages=advantages[s])) for s in (slice(1), slice(1, 4))]
    assert sum(parts).item() == pytest.approx(whole.item())


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
    assert next(iter(values)) == "tokens"
    assert list(values)[1] == "logprob_diff_mean"
    assert values["logprob_diff_mean"] == pytest.approx(math.log(10) / 4)
    assert values["importance_max"] == pytest.approx(10)
    assert values["importance_capped"] == pytest.approx(0.25)
    assert values["ess"] == pytest.approx(13**2 / 103 / 4)  # weights 1, 1, 1, 10
    assert values["clip_fraction"] == pytest.approx(0.25)
    assert values["entropy"] == pytest.approx(2.5)
    assert values["kl"] == pytest.approx(0.1)
    assert values["kl_k3"] == pytest.approx(0)
    assert values["nll"] == pytest.approx((4 - math.log(1.5)) / 4)


def test_metrics_of_nothing() -> None:
    assert measure(LossSettings(), tokens(vector())) == {"tokens": 0.0}
