"""What teachers said, as tensors beside the sampled tokens of a micro-batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from gateway.records import Teaching, TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Of the N sampled tokens of a micro-batch.

    `teacher` [N] log-probabilities at temperature 1 and `taught` [N] what their difference to the
    student's counts; `top_ids` [N, K] int64 and `top_logprobs` [N, K] the teacher's tokens, -inf
    where it named fewer, and `distils` [N] what the divergence over them counts. A token has one
    of both, or neither.
    """

    teacher: Tensor
    taught: Tensor
    distils: Tensor
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None

    def to(self, device: str) -> Lessons:
        fields: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value.to(device)
            for name in self.__slots__
        }
        return Lessons(**fields)


def misfit(teaching: Teaching, length: int, vocab: int) -> str | None:
    """Why a teaching cannot be one of a reply of `length` tokens, or None."""
    if len(teaching.logprobs) != length:
        return "teaching_length_mismatch"
    if not all(map(math.isfinite, teaching.logprobs)):
        return "teaching_not_finite"
    if not teaching.top_ids:
        return None
    ids = list(chain.from_iterable(teaching.top_ids))
    values = list(chain.from_iterable(teaching.top_logprobs))
    if not len(teaching.top_ids) == len(teaching.top_logprobs) == length or len(ids) != len(values):
        return "teaching_length_mismatch"
    if min(ids) < 0 or max(ids) >= vocab:
        return "id_outside_vocabulary"
    return None if all(map(math.isfinite, values)) else "teaching_not_finite"


@dataclass(frozen=True, slots=True)
class Teacher:
    """The teachings of a batch, `weights` [n] what each counts; K is the most of any token."""

    samples: Sequence[TrainingSample]
    weights: Sequence[float]
    top_k: int

    @classmethod
    def of(
        cls, samples: Sequence[TrainingSample], weights: Sequence[float], *, top_k: bool
    ) -> Teacher:
        # Never 0 where it is asked for, so that every minibatch has the same fields.
        widest = int(top_k)
        for sample, weight in zip(samples, weights, strict=True):
            if top_k and weight and sample.teaching is not None:
                widest = max([widest, *map(len, sample.teaching.top_ids)])
        return cls(samples, weights, widest)

    def of_turns(self, turns: Sequence[int]) -> Lessons:
        """Of the tokens of these samples, end to end."""
        parts = [self._of_turn(turn) for turn in turns]
        fields: dict[str, Any] = {}
        for name in Lessons.__slots__:
            column = [getattr(part, name) for part in parts]
            fields[name] = None if column[0] is None else torch.cat(column)
        return Lessons(**fields)

    def _of_turn(self, turn: int) -> Lessons:
        sample, weight = self.samples[turn], self.weights[turn]
        teaching, count = sample.teaching, len(sample.sampled_ids)
        nothing = torch.zeros(count)
        told = teaching is not None and weight != 0
        over = told and self.top_k > 0 and bool(teaching and teaching.top_ids)
        weights = torch.full((count,), float(weight))
        ids = torch.zeros(count, self.top_k, dtype=torch.int64)
        values = torch.full((count, self.top_k), -math.inf)
        if over and teaching is not None:
            for row, (own, logs) in enumerate(
                zip(teaching.top_ids, teaching.top_logprobs, strict=True)
            ):
                ids[row, : len(own)] = torch.tensor(list(own))
                values[row, : len(own)] = torch.tensor(list(logs))
        return Lessons(
            teacher=torch.tensor(list(teaching.logprobs), dtype=torch.float32)
            if told and teaching is not None
            else nothing,
            taught=weights if told and not over else nothing,
            distils=weights if over else nothing,
            top_ids=ids if self.top_k else None,
            top_logprobs=values if self.top_k else None,
        )
