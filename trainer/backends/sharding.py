"""Weights spread over ranks by FSDP2: each holds a slice, and gathers a layer while it is needed.

A slice is rows of the first dimension. `shard` ranks hold one copy of the model; with more ranks
there are several copies, and gradients are added up over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from accelerate.big_modeling import init_empty_weights
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from gateway.device import Device
from gateway.errors import ConfigError
from trainer.backends.network import Network
from trainer.config import TrainerConfig
from trainer.distributed import World


class Sharding:
    """How the ranks of a world share weights out. Making it is collective."""

    def __init__(self, world: World, config: TrainerConfig, device: Device) -> None:
        """Raises ConfigError where ranks do not make up whole copies."""
        shard = config.distributed.shard or world.size
        if world.size % shard:
            raise ConfigError(
                f"trainer.distributed.shard is {shard}: {world.size} ranks are not a multiple of it"
            )
        self.world, self._device = world, device
        self._mesh: DeviceMesh = (
            init_device_mesh(device, (world.size,))
            if shard == world.size
            else init_device_mesh(
                device, (world.size // shard, shard), mesh_dim_names=("copy", "shard")
            )
        )
        for group in self._mesh.get_all_groups():
            # Those that a mesh makes have torch's own time-out.
            dist.distributed_c10d._set_pg_timeout(world.timeout, group)  # noqa: SLF001
        #: Checkpoints are written over a group of their own while others go on.
        self.saving = dist.new_group(backend="gloo", timeout=world.timeout)

    def apply(self, network: Network, compute: torch.dtype) -> None:
        """Spread the weights of a network without contents, and give them room on the device.

        They are computed with in `compute`, and their gradients added up in float32.
        """
        policy = MixedPrecisionPolicy(
            param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        parts = [*network.layers, network]
        for part in parts:
            # The root too is given back after each pass: the weights may change before the next.
            fully_shard(part, mesh=self._mesh, mp_policy=policy, reshard_after_forward=True)
        for part in parts:
            assert isinstance(part, FSDPModule)
            # Losses are over the whole batch already, so gradients are sums, not means.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(enable=True)
        network._apply(self._room)  # type: ignore[no-untyped-call]  # noqa: SLF001

    def _room(self, value: Tensor) -> Tensor:
        if value.device.type == "meta":
            return torch.empty_like(value, device=self._device)
        return value.to(self._device)


def local(value: Tensor) -> Tensor:
    """What this rank holds of it; the same storage."""
    if isinstance(value, DTensor):
        held: Tensor = value.to_local()
        return held
    return value


def whole(value: Tensor) -> Tensor:
    """All of it; collective."""
    if isinstance(value, DTensor):
        gathered: Tensor = value.full_tensor()
        return gathered
    return value


def rows(value: Tensor) -> slice:
    """Which rows of the whole this rank holds: FSDP2 gives each an equal number, rounded up."""
    if not isinstance(value, DTensor):
        return slice(None)
    (dimension,) = (at for at, how in enumerate(value.placements) if isinstance(how, Shard))
    mesh = value.device_mesh
    each = -(-value.shape[0] // mesh.size(dimension))
    first = min(each * mesh.get_local_rank(dimension), value.shape[0])
    return slice(first, first + local(value).shape[0])


def summed(gradients: Iterable[Tensor | None]) -> None:
    """Add up, over all ranks and in place, gradients of weights that each rank holds whole."""
    present = [gradient for gradient in gradients if gradient is not None]
    if not present or isinstance(present[0], DTensor):
        return
    flat = torch.cat([gradient.flatten() for gradient in present])
    dist.all_reduce(flat)
    parts = torch.split(flat, [gradient.numel() for gradient in present])
    for gradient, part in zip(present, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def on_meta(make: Callable[[], Any]) -> Any:
    """A module whose weights have a shape and no contents; its buffers are real."""
    with init_empty_weights(include_buffers=False):
        return make()
