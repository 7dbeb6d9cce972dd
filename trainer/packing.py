"""From samples to padded micro-batches.

Sequences are padded on the right, where a causal model never looks back from, so no mask is
needed and padding cannot change a number. Sampled tokens are addressed by their place in the
flattened hidden states, so that logits are only ever made where a token was sampled. Turns of one
chain share a sequence: one forward pass for all of a session, the same gradients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gateway.errors import TrainerError
from gateway.records import TrainingSample
from trainer.chains import chains


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward pass.

    `ids` [b, T] int64. `places` [N] are rows of the hidden states flattened to [b * T, H]: the
    position before each sampled token. `targets` [N] int64, `behaviour`, `advantages`,
    `temperature` and `lags` (versions) [N] float32, `samples` [N] int64 the index of the sample in
    the whole batch. `proximal` [N] where it was measured beforehand.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    temperature: Tensor
    lags: Tensor
    samples: Tensor
    proximal: Tensor | None = None

    def to(self, device: str) -> MicroBatch:
        fields: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value.to(device)
            for name in self.__slots__
        }
        return MicroBatch(**fields)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """All of a step. `samples` is counted before anything is left out."""

    micro: tuple[MicroBatch, ...]
    samples: int

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(micro.targets.numel() for micro in self.micro)

    @property
    def forward_tokens(self) -> int:
        """Ids that a forward pass of all of it reads, padding included."""
        return sum(micro.ids.numel() for micro in self.micro)

    def with_proximal(self, proximal: Sequence[Tensor]) -> PackedBatch:
        """The same with the proximal log-probabilities of each micro-batch."""
        micro = tuple(
            replace(one, proximal=log.detach().cpu())
            for one, log in zip(self.micro, proximal, strict=True)
        )
        return PackedBatch(micro, self.samples)


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
    version: int = 0,
    first: int = 0,
) -> PackedBatch:
    """Pack samples with their token advantages ([R] each) into micro-batches.

    At most `budget` padded tokens a micro-batch, except that one sequence always fits. `version`
    is the one that the step starts from, `first` the index of the first sample. Raises
    TrainerError on a sample that `defect` would have refused.
    """
    for sample, gains in zip(samples, advantages, strict=True):
        reason = defect(sample, vocab=vocab, max_tokens=2**31)
        if reason or len(gains) != len(sample.sampled_ids):
            raise TrainerError(f"sample {sample.id} cannot be packed: {reason or 'advantages'}")
    rows = chains(samples)
    groups = group_by_length([_length(samples[row[-1]]) for row in rows], budget)
    micro = tuple(
        _micro([[_Turn(i + first, samples[i], advantages[i]) for i in rows[r]] for r in g], version)
        for g in groups
    )
    return PackedBatch(micro, len(samples))


def minibatches(
    samples: Sequence[TrainingSample],
    advantages: Sequence[Sequence[float]],
    count: int,
    *,
    vocab: int,
    budget: int,
    version: int = 0,
) -> tuple[PackedBatch, ...]:
    """The same in at most `count` batches of nearly equal numbers of samples, in order."""
    total = len(samples)
    count = min(count, total)
    edges = [total * place // count for place in range(count + 1)]
    return tuple(
        pack(
            samples[low:high],
            advantages[low:high],
            vocab=vocab,
            budget=budget,
            version=version,
            first=low,
        )
        for low, high in itertools.pairwise(edges)
    )


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


@dataclass(frozen=True, slots=True)
class _Turn:
    index: int
    sample: TrainingSample
    advantages: Sequence[float]


def _micro(rows: Sequence[Sequence[_Turn]], version: int) -> MicroBatch:
    """Each row the turns of a chain, the longest last."""
    width = max(_length(row[-1].sample) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    places: list[int] = []
    targets: list[int] = []
    behaviour: list[float] = []
    gains: list[float] = []
    temperature: list[float] = []
    lags: list[int] = []
    owners: list[int] = []
    for number, row in enumerate(rows):
        longest = row[-1].sample
        whole = [*longest.prompt_ids, *longest.sampled_ids][:-1]
        ids[number, : len(whole)] = torch.tensor(whole)
        for turn in row:
            first = number * width + len(turn.sample.prompt_ids) - 1
            count = len(turn.sample.sampled_ids)
            places.extend(range(first, first + count))
            targets.extend(turn.sample.sampled_ids)
            behaviour.extend(turn.sample.logprobs)
            gains.extend(turn.advantages)
            temperature.extend([turn.sample.temperature] * count)
            lags.extend(_lags(turn.sample, version))
            owners.extend([turn.index] * count)
    return MicroBatch(
        ids=ids,
        places=torch.tensor(places),
        targets=torch.tensor(targets),
        behaviour=torch.tensor(behaviour, dtype=torch.float32),
        advantages=torch.tensor(gains, dtype=torch.float32),
        temperature=torch.tensor(temperature, dtype=torch.float32),
        lags=torch.tensor(lags, dtype=torch.float32),
        samples=torch.tensor(owners),
    )


def _lags(sample: TrainingSample, version: int) -> list[int]:
    """Versions between the policy that sampled each token and `version`."""
    lags = [0] * len(sample.sampled_ids)
    for span in sample.spans:
        for place in range(span.start, min(span.end, len(lags))):
            lags[place] = max(0, version - span.version)
    return lags
