"""Training from an export, without a database or an engine. Blocking."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.errors import TrainerError
from gateway.records import PolicyKind, PolicyRef, SampleHead, TrainingSample
from trainer.checkpoint import Written
from trainer.config import TrainerSettings
from trainer.exported import decode
from trainer.learner import Learner
from trainer.sampling import refusal
from trainer.schedule import choose

#: Called after each step with its number and metrics.
Told = Callable[[int, dict[str, float]], Any]

#: Batches that are looked at together, so that groups of one are found.
_LINE = 16

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

    What says nothing by the configured method, and what `refusal` names, is left out. Raises
    TrainerError where the file holds no samples or nothing to train on, NonFinite, OSError.
    """
    with path.open("rb") as file:
        samples = sorted(decode(file), key=lambda sample: (sample.arrived_at, sample.id))
    left_out: Counter[str] = Counter()
    usable = {}
    for sample in samples:
        if reason := refusal(sample, settings.trainer, learner.vocab_size):
            left_out[reason] += 1
        else:
            usable[_head(sample)] = sample
    learner.restore(_BASE, None)
    steps = 0
    for batch in _batches(list(usable), settings, left_out):
        steps += 1
        told(steps, learner.train([usable[head] for head in batch], lambda: False))
    if not steps:
        raise TrainerError(f"{path} holds too few samples that can be trained on: {dict(left_out)}")
    return Offline(learner.write(version), steps, left_out)


def _head(sample: TrainingSample) -> SampleHead:
    """As the schedule sees it; nothing is stale, since all of it is trained on once."""
    return SampleHead(
        id=sample.id,
        turn_id=sample.turn_id,
        session_id=sample.session_id,
        score=sample.score,
        version_min=0,
        arrived_at=sample.arrived_at,
        rule=sample.rule,
        group=sample.group,
        taught=sample.teaching is not None,
    )


def _batches(
    heads: Sequence[SampleHead], settings: TrainerSettings, left_out: Counter[str]
) -> Iterator[Sequence[SampleHead]]:
    """Batches in order of arrival, groups whole; what is in none is counted in `left_out`.

    Where the line is full of what a session has beyond its number, more of it is looked at.
    """
    rest, line = deque(heads), list[SampleHead]()
    limit = _LINE * settings.batch
    while True:
        while rest and len(line) < limit:
            line.append(rest.popleft())
        choice = choose(
            line,
            live_version=0,
            max_lag=0,
            batch=settings.batch,
            window=len(line),
            min_batch=settings.min_batch,
            overdue_before=-math.inf if rest else math.inf,
            per_session=settings.trainer.per_session,
            method=settings.trainer.credit.method,
        )
        left_out.update(choice.dropped.values())
        gone = set(choice.dropped)
        if choice.due:
            gone.update(choice.chosen)
            yield choice.chosen
        elif rest:
            limit += settings.batch
        elif not choice.dropped:
            left_out["rest_too_small"] += len(line)
            return
        line = [head for head in line if head not in gone]
        if not line and not rest:
            return
