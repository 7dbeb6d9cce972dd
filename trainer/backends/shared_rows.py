"""Whether a model keeps sequences apart that lie end to end in one row."""

from __future__ import annotations

import inspect

import torch

from trainer.backends.network import Network

_FIRST, _SECOND = 5, 4


@torch.no_grad()
def keeps_apart(network: Network, device: str) -> bool:
    """Whether positions that begin anew end all attention to what was before.

    It depends on the model and on how it computes attention (one with a recurrent layer carries
    its state on), so it is tried: states of two short sequences alone, in one row, and in one row
    as if they were one sequence. What is apart is much nearer to the first than the third is.
    """
    if "position_ids" not in inspect.signature(network.trunk.forward).parameters:
        return False
    vocab = int(network.head.weight.shape[0])
    ids = torch.arange(1, _FIRST + _SECOND + 1, device=device)[None] * 7 % vocab
    positions = torch.cat([torch.arange(_FIRST), torch.arange(_SECOND)]).to(device)[None]
    alone = network(network.states, ids[:, _FIRST:]).float()
    shared = network(network.states, ids, positions)[:, _FIRST:].float()
    merged = network(network.states, ids)[:, _FIRST:].float()
    off, mixed = (float((one - alone).abs().max()) for one in (shared, merged))
    return off < mixed / 10
