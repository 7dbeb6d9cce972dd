"""Moments and masters as Megatron's distributed checkpoint, which any sharing out can read.

Every process writes what it holds. The weights themselves are in the exported policy: what is
float32 there is its own master.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from gateway.errors import ConfigError
from trainer.backends.megatron.optimizer import StageOptimizer
from trainer.backends.megatron.transformer import Trunk

_KINDS = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "master": "fp32_param"}


def save_state(directory: Path, trunk: Trunk, optimizer: StageOptimizer) -> None:
    """All processes must call it together, with a directory that they share.

    Raises OSError on all of them where one cannot write.
    """
    state = _sharded(trunk, optimizer, loading=False)
    try:
        dist_checkpointing.save(state, str(directory))
    except CheckpointException as error:  # No Exception: nobody else would catch it.
        raise OSError(f"{directory} cannot be written: {error}") from error


def load_state(directory: Path, trunk: Trunk, optimizer: StageOptimizer) -> None:
    """Go on from what was saved; the policy's weights are loaded already.

    Raises ConfigError for a state that another back end wrote.
    """
    if not dist_checkpointing.check_is_distributed_checkpoint(str(directory)):
        raise ConfigError(f"{directory} is no state of trainer.backend megatron")
    found = dist_checkpointing.load(_sharded(trunk, optimizer, loading=True), str(directory))
    optimizer.restore(found["optimizer"], found["steps"])


def read_moments(directory: Path, trunk: Trunk) -> dict[str, dict[str, Tensor]]:
    """Of each kind what belongs to the weights of this process, by Megatron's names.

    `master` are there where weights are not float32. All processes must call it together.
    """
    weights = trunk.sharded_state_dict()
    wanted = {
        kind: {
            name: make_sharded_optimizer_tensor(
                weights[name],
                torch.zeros_like(weight, dtype=torch.float32),
                f"optimizer.state.{stored}",
            )
            for name, weight in trunk.named_parameters()
        }
        for kind, stored in _KINDS.items()
        if kind != "master" or trunk.config.params_dtype != torch.float32
    }
    found: dict[str, Any] = dist_checkpointing.load(wanted, str(directory))
    return {kind: found[kind] for kind in wanted}


def _sharded(trunk: Trunk, optimizer: StageOptimizer, *, loading: bool) -> dict[str, Any]:
    state = optimizer.sharded(trunk.sharded_state_dict(), loading=loading)
    return {"optimizer": state, "steps": optimizer.steps}
