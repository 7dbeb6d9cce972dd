"""Megatron's AdamW with masters in float32, with warm-up, clipping and a way back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from torch import Tensor

from gateway.errors import NonFinite
from trainer.backends.megatron.transformer import Trunk
from trainer.config import OptimizerSettings

#: Masters and moments by weight, so that tensor, pipeline and data parallel sizes may change.
_METADATA = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What this process holds of masters and moments, in order, on the CPU, and steps taken."""

    masters: list[Tensor]
    moments: list[dict[str, Any]]
    steps: int


class StageOptimizer:
    """Of the weights of a stage. `stage` is the model with gradients that are summed up."""

    def __init__(self, trunk: Trunk, settings: OptimizerSettings, *, distributed: bool) -> None:
        self._settings, self._distributed = settings, distributed
        dtype = trunk.config.params_dtype
        self.stage = DistributedDataParallel(
            trunk.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True,
                overlap_grad_reduce=False,
                use_distributed_optimizer=distributed,
            ),
            trunk,
        )
        whole = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=settings.lr,
                weight_decay=settings.weight_decay,
                adam_beta1=settings.betas[0],
                adam_beta2=settings.betas[1],
                adam_eps=settings.eps,
                clip_grad=settings.max_grad_norm,
                bf16=dtype == torch.bfloat16,
                params_dtype=dtype,
                use_distributed_optimizer=distributed,
            ),
            [self.stage],
            # None of Megatron's exceptions: weights of every shape decay alike.
            config_overrides={},
        )
        (self.core,) = whole.chained_optimizers
        self.steps = 0

    def step(self, loss: float) -> tuple[float, float]:
        """Apply the gradients that were gathered: their norm before clipping, the learning rate.

        Raises NonFinite where the loss or the norm is not; then no weight has changed.
        """
        settings = self._settings
        self.core.prepare_grads()
        norm = float(self.core.clip_grad_norm(settings.max_grad_norm))
        if not (math.isfinite(norm) and math.isfinite(loss)):
            raise NonFinite(f"loss {loss}, gradient norm {norm}")
        lr = settings.lr * min(1.0, (self.steps + 1) / max(1, settings.warmup_steps))
        for group in self.core.param_groups:
            group["lr"] = lr
        self.core.step_with_ready_grads()
        self.steps += 1
        return norm, lr

    def forget_gradients(self) -> None:
        self.stage.zero_grad_buffer()
        self.core.zero_grad()

    @torch.no_grad()
    def snapshot(self) -> Snapshot:
        return Snapshot(
            masters=[master.detach().to("cpu", copy=True) for master in self._masters()],
            moments=[
                {
                    name: value.detach().to("cpu", copy=True)
                    if isinstance(value, Tensor)
                    else value
                    for name, value in self.core.optimizer.state.get(master, {}).items()
                }
                for master in self._masters()
            ],
            steps=self.steps,
        )

    @torch.no_grad()
    def rewind(self, snapshot: Snapshot) -> None:
        self._forget_moments()
        for master, value, moments in zip(
            self._masters(), snapshot.masters, snapshot.moments, strict=True
        ):
            master.copy_(value)
            if moments:
                self.core.optimizer.state[master] = {
                    name: value.to("cpu" if name == "step" else master.device, copy=True)
                    if isinstance(value, Tensor)
                    else value
                    for name, value in moments.items()
                }
        self._count(snapshot.steps)
        self._lower()

    @torch.no_grad()
    def shrink(self, snapshot: Snapshot, share: float) -> None:
        """Keep only a share of what the weights have moved since a snapshot."""
        for master, value in zip(self._masters(), snapshot.masters, strict=True):
            before = value.to(master.device)
            master.copy_(before + share * (master - before))
        self._lower()

    def reset(self) -> None:
        """Begin anew from the weights as they are."""
        self._forget_moments()
        self._count(0)
        self.core.reload_model_params()

    def sharded(self, weights: dict[str, Any], *, loading: bool) -> dict[str, Any]:
        """Moments and masters as Megatron's checkpoints describe them, given the weights so."""
        self._fill()
        found: dict[str, Any] = self.core.sharded_state_dict(
            weights, is_loading=loading, metadata=_METADATA
        )
        return found

    @torch.no_grad()
    def restore(self, state: dict[str, Any], steps: int) -> None:
        """Go on from what a checkpoint holds of this process's share."""
        shared = state.pop("param_state", None)
        self.core.load_state_dict(state)
        if shared is not None:
            # Megatron takes every entry of a moment for a tensor of the checkpoint, and gives all
            # weights one count; of torch's optimizer each has its own, among the moments.
            moments = [self.core.optimizer.state[master] for master in self._masters()]
            counts = [one.pop("step", None) for one in moments]
            self.core.load_parameter_state_from_fully_reshardable(shared)
            for one, count in zip(moments, counts, strict=True):
                if count is not None:
                    one["step"] = count.clone()
        self._count(steps)
        self._lower()

    def _masters(self) -> Iterator[Tensor]:
        for group in self.core.param_groups:
            yield from group["params"]

    def _fill(self) -> None:
        """Moments of zero where there are none yet: Megatron asks for those of every weight."""
        counts = isinstance(self.core.optimizer, torch.optim.AdamW)
        for master in self._masters():
            state = self.core.optimizer.state[master]
            if not state:
                if counts:
                    state["step"] = torch.tensor(float(self.steps))
                state["exp_avg"] = torch.zeros_like(master)
                state["exp_avg_sq"] = torch.zeros_like(master)

    def _forget_moments(self) -> None:
        self.core.optimizer.state.clear()

    def _count(self, steps: int) -> None:
        """Optimizers of Transformer Engine count in their groups, torch's in each moment."""
        self.steps = steps
        for group in self.core.param_groups:
            if "step" in group:
                group["step"] = steps

    def _lower(self) -> None:
        """Bring the weights that are computed with to what their masters are."""
        # Megatron has no public way but a step; float32 weights are their own masters.
        lower = getattr(self.core, "_copy_main_params_to_model_params", None)
        if lower is not None:
            lower()
        if self._distributed:
            self.stage.start_param_sync()
