"""Which share of a model and of a batch is this process's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import initialize_rng_tracker

from gateway.device import Device
from gateway.errors import ConfigError
from trainer.megatron_settings import MegatronSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Places and sizes. Megatron keeps the groups themselves, for the whole process."""

    tensor: int
    tensors: int
    stage: int
    stages: int
    data: int
    datas: int

    @classmethod
    def open(cls, settings: MegatronSettings, device: Device, timeout: timedelta) -> Parallel:
        """Make the groups; who does not answer in one of them is lost after `timeout`.

        Raises ConfigError where the processes do not divide into them.
        """
        if not dist.is_initialized():
            # One process on its own needs no address.
            store = dist.HashStore()  # type: ignore[attr-defined]
            backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        sizes = settings.tensor_parallel, settings.pipeline_parallel
        world = dist.get_world_size()
        if world % (sizes[0] * sizes[1]):
            raise ConfigError(
                f"{world} processes do not divide into trainer.megatron.tensor_parallel "
                f"{sizes[0]} times pipeline_parallel {sizes[1]}"
            )
        if not parallel_state.is_initialized():
            parallel_state.initialize_model_parallel(
                *sizes,
                create_gloo_process_groups=True,
                distributed_timeout_minutes=timeout.total_seconds() / 60,
            )
            # Nothing here is random, and Megatron's own tracker would want seeds.
            initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
        found = cls(
            tensor=parallel_state.get_tensor_model_parallel_rank(),
            tensors=parallel_state.get_tensor_model_parallel_world_size(),
            stage=parallel_state.get_pipeline_model_parallel_rank(),
            stages=parallel_state.get_pipeline_model_parallel_world_size(),
            data=parallel_state.get_data_parallel_rank(),
            datas=parallel_state.get_data_parallel_world_size(),
        )
        if (found.tensors, found.stages) != sizes:
            raise ConfigError("one process cannot train two lines that are shared out differently")
        return found

    @property
    def first(self) -> bool:
        """Whether this is the first stage, which holds the embedding."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether this is the last stage, which holds the output layer."""
        return self.stage == self.stages - 1

    @property
    def tells(self) -> bool:
        """Whether others learn from this process: those that share a matrix find the same."""
        return self.tensor == 0

    @property
    def tensor_group(self) -> Any:
        """Those that share every matrix with this process."""
        return parallel_state.get_tensor_model_parallel_group()

    def layers(self, count: int, stage: int | None = None) -> range:
        """Layers of a stage, by default of this one, of `count` in all."""
        own = count // self.stages
        start = (self.stage if stage is None else stage) * own
        return range(start, start + own)
