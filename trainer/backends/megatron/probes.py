"""Sequences to score, as micro-batches that nothing is learnt from."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.backends.base import Probe
from trainer.micro_batch import MicroBatch, PackedBatch
from trainer.rows import group_by_length


def as_batch(probes: Sequence[Probe], budget: int) -> tuple[PackedBatch, list[int]]:
    """Micro-batches of at most `budget` padded tokens, and the order of the probes in them."""
    groups = list(group_by_length([len(probe.ids) for probe in probes], budget))
    micro = tuple(_micro([probes[index] for index in group]) for group in groups)
    return PackedBatch(micro, len(probes)), [index for group in groups for index in group]


def _micro(probes: Sequence[Probe]) -> MicroBatch:
    width = max(len(probe.ids) for probe in probes)
    ids = torch.zeros(len(probes), width, dtype=torch.int64)
    places: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    for row, probe in enumerate(probes):
        ids[row, : len(probe.ids)] = torch.tensor(probe.ids)
        places.extend(range(row * width + probe.start - 1, row * width + len(probe.ids) - 1))
        targets.extend(probe.ids[probe.start :])
        owners.extend([row] * (len(probe.ids) - probe.start))
    nothing = torch.zeros(len(places))
    return MicroBatch(
        ids=ids,
        places=torch.tensor(places),
        targets=torch.tensor(targets),
        behaviour=nothing,
        advantages=nothing,
        temperature=torch.ones(len(places)),
        lags=nothing,
        samples=torch.tensor(owners),
    )
