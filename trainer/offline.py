"""Training from an export, without a database or an engine. Blocking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.errors import TrainerError
from gateway.records import PolicyKind, PolicyRef, TrainingSample
from trainer.checkpoint import Written
from trainer.config import TrainerSettings
from trainer.exported import decode
from trainer.learner import Learner
from trainer.sampling import refusal

#: Called after each step with its number and metrics.
Told = Callable[[int, dict[str, float]], Any]

_BASE = PolicyRef(lineage_id=UUID(int=0), version=0, kind=PolicyKind.BASE)


@dataclass(frozen=True, slots=True)
class Offline:
    """A version trained from a file: where it is, in how many steps, and what was left out."""

    written: Written
    steps: int
    left_out: Counter[str]


def train_file(
    path: Path, learner: Learner, settings: TrainerSettings, told: Told, version: int = 1
) -> Offline:
    """Train the base model on a file's samples, in order of arrival, and write one version.

    Scores of 0 and what `refusal` names are left out. Raises TrainerError where the file holds no
    samples or nothing to train on, NonFinite, OSError.
    """
    with path.open("rb") as file:
        samples = sorted(decode(file), key=lambda sample: (sample.arrived_at, sample.id))
    reasons = [_reason(sample, settings, learner.vocab_size) for sample in samples]
    usable = [one for one, reason in zip(samples, reasons, strict=True) if reason is None]
    left_out = Counter(reason for reason in reasons if reason is not None)
    learner.restore(_BASE, None)
    steps = 0
    for batch in _batches(usable, settings.batch, settings.min_batch):
        steps += 1
        told(steps, learner.train(batch, lambda: False))
    if not steps:
        raise TrainerError(f"{path} holds too few samples that can be trained on: {len(usable)}")
    left_out["rest_too_small"] += len(usable) - _taken(len(usable), settings)
    return Offline(learner.write(version), steps, +left_out)


def _reason(sample: TrainingSample, settings: TrainerSettings, vocab: int) -> str | None:
    return "score_zero" if not sample.score else refusal(sample, settings.trainer, vocab)


def _taken(count: int, settings: TrainerSettings) -> int:
    rest = count % settings.batch
    return count if rest >= settings.min_batch else count - rest


def _batches(
    samples: Sequence[TrainingSample], batch: int, least: int
) -> Iterator[Sequence[TrainingSample]]:
    for start in range(0, len(samples), batch):
        part = samples[start : start + batch]
        if len(part) >= least:
            yield part
