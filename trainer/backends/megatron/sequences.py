"""Micro-batches as sequences end to end, without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from trainer.micro_batch import MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """`ids` and `positions` [1, t] int64; `places` [N] are those of the micro-batch, in t."""

    ids: Tensor
    positions: Tensor
    places: Tensor
    params: PackedSeqParams

    @classmethod
    def of(cls, micro: MicroBatch, multiple: int) -> Sequences:
        """Each row up to the last place that predicts something: what follows is never read.

        `t` is filled up to a multiple by a sequence of its own, for processes that share it out.
        """
        rows, width = micro.ids.shape
        row, column = micro.places // width, micro.places % width
        # A row that predicts nothing is one token, since a sequence of none is no sequence.
        lengths = torch.ones(rows, dtype=torch.int64, device=micro.ids.device)
        lengths.scatter_reduce_(0, row, column + 1, "amax")
        columns = torch.arange(width, device=micro.ids.device).expand(rows, width)
        read = columns < lengths[:, None]
        ids, positions = micro.ids[read], columns[read]
        rest = -len(ids) % multiple
        if rest:
            filling = torch.arange(rest, device=ids.device)
            ids = torch.cat((ids, torch.zeros_like(filling)))
            positions = torch.cat((positions, filling))
            lengths = torch.cat((lengths, lengths.new_tensor([rest])))
        ends = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        longest = int(lengths.max())
        edges = ends.to(torch.int32)
        return cls(
            ids=ids[None],
            positions=positions[None],
            places=ends[row] + column,
            params=PackedSeqParams(
                qkv_format="thd",
                cu_seqlens_q=edges,
                cu_seqlens_kv=edges,
                max_seqlen_q=longest,
                max_seqlen_kv=longest,
            ),
        )
