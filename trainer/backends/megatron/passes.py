"""Micro-batches through all stages, by Megatron's schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from gateway.device import Device
from trainer.backends.megatron.parallel import Parallel
from trainer.backends.megatron.sequences import Sequences
from trainer.distributed import split
from trainer.micro_batch import MicroBatch, PackedBatch

T = TypeVar("T")

#: What the last stage makes of a micro-batch, given its place in the batch and states [N, H].
Reader = Callable[[int, MicroBatch, Tensor], T]
#: The same with a loss first, whose gradients are wanted.
Learning = Callable[[int, MicroBatch, Tensor], tuple[Tensor, T]]


#: What is called with each micro-batch at the end of the last stage.
Finish = Callable[[int | None, MicroBatch, Tensor], Any]


class Passes:
    """Micro-batches are shared out over data parallel processes; see `trainer.distributed.split`.

    All processes must call every method together. With `scattered` the t of a stage's states are
    shared out over those that share a matrix.
    """

    def __init__(
        self, stage: torch.nn.Module, parallel: Parallel, device: Device, *, scattered: bool
    ) -> None:
        self._stage, self._parallel, self._device = stage, parallel, device
        self._scattered = scattered
        self._run = get_forward_backward_func()

    def read(self, batch: PackedBatch, reader: Reader[T]) -> dict[int, T]:
        """What `reader` makes of this process's micro-batches, by their places in the batch.

        Nothing on any but the last stage.
        """

        def finish(place: int | None, micro: MicroBatch, states: Tensor) -> Any:
            return place, None if place is None else reader(place, micro, states)

        with torch.no_grad():
            return self._through(batch, finish, backward=False)

    def learn(self, batch: PackedBatch, learning: Learning[T]) -> dict[int, T]:
        """The same, with gradients of the sum of the losses of all processes."""

        def finish(place: int | None, micro: MicroBatch, states: Tensor) -> Any:
            if place is None:
                # Its gradients are 0, and the schedules of other processes wait for them.
                return states.sum(), (None, None)
            value, result = learning(place, micro, states)
            return value, (place, result)

        return self._through(batch, finish, backward=True)

    def _through(self, batch: PackedBatch, finish: Finish, *, backward: bool) -> dict[int, Any]:
        mine = split(batch.micro, self._parallel.data, self._parallel.datas)
        found: list[Any] = self._run(
            forward_step_func=partial(self._forward, finish),
            data_iterator=iter(mine),
            model=[self._stage],
            num_microbatches=len(mine),
            # Stages tell each other the shape of every micro-batch; these are not read.
            seq_length=1,
            micro_batch_size=1,
            forward_only=not backward,
            collect_non_loss_data=not backward,
        )
        return {place: value for place, value in found if place is not None}

    def _forward(
        self,
        finish: Finish,
        data: Iterator[tuple[int | None, MicroBatch]],
        stage: torch.nn.Module,
    ) -> tuple[Tensor, Callable[..., Any]]:
        place, micro = next(data)
        micro = micro.to(self._device)
        pack = Sequences.of(micro, self._parallel.tensors if self._scattered else 1)
        states = stage(pack.ids, pack.positions, None, packed_seq_params=pack.params)

        def ended(states: Tensor, *, non_loss_data: bool = False) -> Any:
            if self._scattered:
                # What follows computes the same on every process: so is the gradient.
                states = gather_from_sequence_parallel_region(
                    states, tensor_parallel_output_grad=False
                )
            value = finish(place, micro, states[:, 0][pack.places])
            if non_loss_data:
                return value
            loss, result = value
            # The schedule works on the loss in place; what is told of it is a copy of its own.
            nothing = torch.zeros((), dtype=torch.int, device=loss.device)
            return loss.clone(), nothing, result

        return states, ended
