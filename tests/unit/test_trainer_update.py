"""One update: its minibatches and how far it may move."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from gateway.errors import NonFinite
from trainer.backends.base import Backend, StepAbandoned, StepOutcome
from trainer.config import LossSettings
from trainer.losses import TokenLoss, Tokens
from trainer.micro_batch import MicroBatch, PackedBatch
from trainer.update import hold, update


class Line:
    """A policy of one number x: every token has log-probability x; a step adds to it."""

    def __init__(self, *steps: float | Exception) -> None:
        self.x, self.steps, self.seen = -1.0, list(steps), cast("list[Tokens]", [])

    def logprobs(self, batch: PackedBatch) -> list[Tensor]:
        return [torch.full((len(micro.targets),), self.x) for micro in batch.micro]

    def step(
        self, batch: PackedBatch, loss: TokenLoss, cancelled: Callable[[], bool]
    ) -> StepOutcome:
        (micro,) = batch.micro
        (current,) = self.logprobs(batch)
        tokens = Tokens(
            current=current, proximal=current if micro.proximal is None else micro.proximal,
            behaviour=micro.behaviour, advantages=micro.advantages,
            entropy=torch.zeros_like(current), samples=micro.samples, lags=micro.lags,
            reference=current, kl=torch.zeros_like(current),
        )  # fmt: skip
        self.seen.append(tokens)
        move = self.steps.pop(0)
        if isinstance(move, Exception):
            raise move
        self.x += move
        return StepOutcome(loss=float(loss(tokens)), grad_norm=move, lr=0.1, tokens=tokens)

    def snapshot(self) -> object:
        return self.x

    def rewind(self, snapshot: object) -> None:
        assert isinstance(snapshot, float)
        self.x = snapshot

    def shrink(self, snapshot: object, share: float) -> None:
        assert isinstance(snapshot, float)
        self.x = snapshot + share * (self.x - snapshot)


def batch(first: int = 0, tokens: int = 3) -> PackedBatch:
    numbers = torch.zeros(tokens)
    micro = MicroBatch(
        ids=torch.zeros(1, tokens, dtype=torch.int64), places=torch.arange(tokens),
        targets=torch.arange(tokens), behaviour=numbers - 1, advantages=numbers + 1,
        temperature=numbers + 1, lags=numbers, samples=torch.full((tokens,), first),
    )  # fmt: skip
    return PackedBatch((micro,), 1)


def run(line: Line, batches: Sequence[PackedBatch], **settings: Any) -> dict[str, float]:
    return update(cast("Backend", line), batches, LossSettings(**settings), lambda: False)


def test_a_small_update_is_kept_whole() -> None:
    line = Line(0.1)
    metrics = run(line, [batch()])
    # r ln r - r + 1 at r = e^0.1
    assert metrics["step_kl"] == pytest.approx(0.1 * 1.1051709 - 0.1051709, abs=1e-6)
    assert metrics["step_share"] == 1
    assert line.x == pytest.approx(-0.9)


def test_a_large_update_is_halved_until_it_keeps_to_the_bound() -> None:
    line = Line(0.8)
    metrics = run(line, [batch()], max_step_kl=0.03)
    # 0.8, 0.4 and 0.3 would be too far; at 0.2 the divergence is 0.0229.
    assert metrics["step_share"] == 0.25
    assert line.x == pytest.approx(-0.8)
    assert metrics["step_kl"] == pytest.approx(0.2 * 1.2214028 - 0.2214028, abs=1e-5)


def test_without_a_bound_nothing_is_measured_again() -> None:
    line = Line(5.0)
    metrics = run(line, [batch()], max_step_kl=None)
    assert "step_kl" not in metrics
    assert line.x == 4.0


def test_several_minibatches_share_the_proximal_policy_measured_first() -> None:
    line = Line(0.05, 0.05)
    metrics = run(line, [batch(0), batch(1)])
    assert [tokens.proximal.tolist() for tokens in line.seen] == [[-1.0] * 3] * 2
    assert line.seen[1].current.tolist() == pytest.approx([-0.95] * 3)
    assert metrics["ratio_max"] == pytest.approx(1.0512711)
    assert metrics["tokens"] == 6
    # Both moves count against the bound.
    assert metrics["step_kl"] == pytest.approx(0.1 * 1.1051709 - 0.1051709, abs=1e-6)


@pytest.mark.parametrize("error", [NonFinite("loss nan"), StepAbandoned("stop")])
def test_what_a_later_minibatch_breaks_is_undone(error: Exception) -> None:
    line = Line(0.05, error)
    with pytest.raises(type(error)):
        run(line, [batch(0), batch(1)])
    assert line.x == -1.0


def test_an_update_that_no_halving_tames_is_undone() -> None:
    line = Line(float("nan"))
    with pytest.raises(NonFinite, match="no part"):
        run(line, [batch()])
    assert line.x == -1.0


def test_nothing_to_measure_is_no_move() -> None:
    empty = batch(tokens=0)
    assert hold(cast("Backend", Line()), -1.0, [empty], torch.zeros(0), 0.03).share == 1
