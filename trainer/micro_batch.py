"""One forward pass, and all those of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainer.lessons import Lessons


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward pass.

    `ids` [b, T] int64, and `positions` [b, T] where a row holds several sequences: each begins at
    0 and sees nothing before it. `places` [N] are rows of the hidden states flattened to
    [b * T, H]: the position before each sampled token. `targets` [N] int64, `behaviour`,
    `advantages`, `temperature` and `lags` (versions) [N] float32, `samples` [N] int64 the index of
    the sample in the whole batch. `proximal` [N] where it was measured beforehand, `student` [N]
    the same at temperature 1. `lesson` where samples of the batch were taught. `kept` [N, M] int64
    are the ids that each token was sampled from, -1 where there are fewer, a row of -1 where all
    of them were.
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
    student: Tensor | None = None
    lesson: Lessons | None = None
    kept: Tensor | None = None
    positions: Tensor | None = None

    @classmethod
    def idle(cls) -> MicroBatch:
        """A pass over two ids that trains nothing: N is 0."""
        none, empty = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
        return cls(
            ids=torch.zeros(1, 2, dtype=torch.int64),
            places=empty,
            targets=empty,
            behaviour=none,
            advantages=none,
            temperature=none,
            lags=none,
            samples=empty,
        )

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

    @property
    def taught(self) -> bool:
        """Whether a teacher's word is trained on."""
        return any(micro.lesson is not None for micro in self.micro)

    def at_temperature(self, temperature: float) -> PackedBatch:
        """The same, every token at one temperature and from all ids."""
        micro = tuple(
            replace(one, temperature=torch.full_like(one.temperature, temperature), kept=None)
            for one in self.micro
        )
        return PackedBatch(micro, self.samples)

    def with_proximal(
        self, proximal: Sequence[Tensor], student: Sequence[Tensor] | None = None
    ) -> PackedBatch:
        """The same with the proximal log-probabilities of each micro-batch.

        `student` are those at temperature 1, where samples were taught.
        """
        told = [None] * len(self.micro) if student is None else [log.detach() for log in student]
        micro = tuple(
            replace(
                one, proximal=log.detach().cpu(), student=None if plain is None else plain.cpu()
            )
            for one, log, plain in zip(self.micro, proximal, told, strict=True)
        )
        return PackedBatch(micro, self.samples)
