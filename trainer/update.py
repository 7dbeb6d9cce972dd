"""One update of the policy from a batch: its minibatches, and how far it may move. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from gateway.errors import NonFinite
from trainer.backends.base import Backend, StepAbandoned
from trainer.config import LossSettings
from trainer.losses import Size, joined, kl_moved, measure, policy_loss
from trainer.micro_batch import PackedBatch

#: Halvings after which even a divergence of thousands of nats is within every bound.
_HALVINGS = 24


@dataclass(frozen=True, slots=True)
class Moved:
    """How far the policy moved on the batch, and the share of the update that was kept."""

    kl: float
    share: float


def update(
    backend: Backend,
    batches: Sequence[PackedBatch],
    settings: LossSettings,
    cancelled: Callable[[], bool],
) -> dict[str, float]:
    """One optimizer step a minibatch; the metrics of all.

    With several, the proximal policy is measured before the first. Raises NonFinite or
    StepAbandoned, then nothing has changed.
    """
    # A single step that is not bounded changes nothing where it fails: it needs no way back.
    undone = len(batches) > 1 or settings.max_step_kl is not None
    before = backend.snapshot() if undone else None
    old: list[Tensor] | None = None
    if len(batches) > 1:
        measured = [backend.logprobs(batch) for batch in batches]
        old = [log for logs in measured for log in logs]
        batches = [
            batch.with_proximal(
                logs, backend.logprobs(batch.at_temperature(1.0)) if batch.taught else None
            )
            for batch, logs in zip(batches, measured, strict=True)
        ]
    outcomes = []
    try:
        for batch in batches:
            loss = policy_loss(settings, Size(batch.samples, batch.tokens))
            outcomes.append(backend.step(batch, loss, cancelled))
        tokens = joined([outcome.tokens for outcome in outcomes])
        metrics = measure(settings, tokens) | {
            "loss": fmean(outcome.loss for outcome in outcomes),
            "grad_norm": max(outcome.grad_norm for outcome in outcomes),
            "lr": outcomes[-1].lr,
        }
        if settings.max_step_kl is not None:
            # With one minibatch the step itself has measured where it started.
            start = tokens.current if old is None else torch.cat(old).cpu()
            moved = hold(backend, before, batches, start, settings.max_step_kl)
            metrics |= {"step_kl": moved.kl, "step_share": moved.share}
    except (NonFinite, StepAbandoned):
        if undone:
            backend.rewind(before)
        raise
    return metrics


def hold(
    backend: Backend,
    before: object,
    batches: Sequence[PackedBatch],
    old: Tensor,
    bound: float,
) -> Moved:
    """Halve what the weights have moved since `before` until KL(new || old) <= `bound`.

    The divergence is the mean over the batch's tokens, `old` their log-probabilities [N] in
    packing order. Raises NonFinite where no share of the update keeps to it.
    """
    share = 1.0
    for _ in range(_HALVINGS):
        new = torch.cat([log for batch in batches for log in backend.logprobs(batch)]).cpu()
        kl = float(kl_moved(new, old).mean()) if len(old) else 0.0
        if kl <= bound:
            return Moved(kl, share)
        backend.shrink(before, 0.5)
        share /= 2
    raise NonFinite(f"no part of the update keeps KL(new || old) within {bound:g}")
