"""From samples to padded micro-batches.

Sequences are padded on the right, where a causal model never looks back from, so no mask is
needed and padding cannot change a number. Sampled tokens are addressed by their place in the
flattened hidden states, so that logits are only ever made where a token was sampled, and a
sequence may hold the replies of several turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gateway.errors import TrainerError
from gateway.records import TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward pass.

    `ids` [b, T] int64. `places` [N] are rows of the hidden states flattened to [b * T, H]: the
    position before each sampled token. `targets` [N] int64, `behaviour`, `advantages` and
    `temperature` [N] float32, `samples` [N] int64 the index of the sample in the whole batch.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    temperature: Tensor
    samples: Tensor

    def to(self, device: str) -> MicroBatch:
        return MicroBatch(**{name: getattr(self, name).to(device) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """All of a step. `samples` is counted before anything is left out."""

    micro: tuple[MicroBatch, ...]
    samples: int

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(micro.targets.numel() for micro in self.micro)


def defect(sample: TrainingSample, *, vocab: int, max_tokens: int) -> str | None:
    """Why a sample cannot be trained on as it is stored, or None.

    An id outside the vocabulary would read another row's embedding or kill the process; a
    log-probability above 0 or not finite is not one.
    """
    ids = (*sample.prompt_ids, *sample.sampled_ids)
    if not len(sample.prompt_ids) or not len(sample.sampled_ids):
        return "no_tokens"
    if len(sample.sampled_ids) != len(sample.logprobs):
        return "length_mismatch"
    if len(ids) > max_tokens:
        return "too_long"
    if min(ids) < 0 or max(ids) >= vocab:
        return "id_outside_vocabulary"
    if not all(math.isfinite(value) and value <= 1e-3 for value in sample.logprobs):
        return "logprob_not_finite"
    return None if sample.temperature > 0 else "temperature_zero"


def pack(
    samples: Sequence[TrainingSample],
    advantages: Sequence[Sequence[float]],
    *,
    vocab: int,
    budget: int,
) -> PackedBatch:
    """Pack samples with their token advantages ([R] each) into micro-batches.

    At most `budget` padded tokens a micro-batch, except that one sequence always fits. Raises
    TrainerError on a sample that `defect` would have refused.
    """
    for sample, gains in zip(samples, advantages, strict=True):
        reason = defect(sample, vocab=vocab, max_tokens=2**31)
        if reason or len(gains) != len(sample.sampled_ids):
            raise TrainerError(f"sample {sample.id} cannot be packed: {reason or 'advantages'}")
    groups = group_by_length([_length(sample) for sample in samples], budget)
    micro = tuple(_micro([(i, samples[i], advantages[i]) for i in group]) for group in groups)
    return PackedBatch(micro, len(samples))


def group_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of sequences that share a forward pass, longest first to keep padding small."""
    group: list[int] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and longest * (len(group) + 1) > budget:
            yield group
            group = []
        longest = lengths[index] if not group else longest
        group.append(index)
    if group:
        yield group


def _length(sample: TrainingSample) -> int:
    # The last sampled token predicts nothing that is trained.
    return len(sample.prompt_ids) + len(sample.sampled_ids) - 1


def _micro(rows: Sequence[tuple[int, TrainingSample, Sequence[float]]]) -> MicroBatch:
    width = max(_length(sample) for _, sample, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    places: list[int] = []
    targets: list[int] = []
    behaviour: list[float] = []
    gains: list[float] = []
    temperature: list[float] = []
    owners: list[int] = []
    for row, (index, sample, advantage) in enumerate(rows):
        whole = [*sample.prompt_ids, *sample.sampled_ids][:-1]
        ids[row, : len(whole)] = torch.tensor(whole)
        first = row * width + len(sample.prompt_ids) - 1
        count = len(sample.sampled_ids)
        places.extend(range(first, first + count))
        targets.extend(sample.sampled_ids)
        behaviour.extend(sample.logprobs)
        gains.extend(advantage)
        temperature.extend([sample.temperature] * count)
        owners.extend([index] * count)
    return MicroBatch(
        ids=ids,
        places=torch.tensor(places),
        targets=torch.tensor(targets),
        behaviour=torch.tensor(behaviour, dtype=torch.float32),
        advantages=torch.tensor(gains, dtype=torch.float32),
        temperature=torch.tensor(temperature, dtype=torch.float32),
        samples=torch.tensor(owners),
    )
