"""Whole weights from the trainer's memory to an engine's, without a disk between them.

For each engine and version a group of its own: the trainer is rank 0, the ranks of the engine are
the others; gloo on a CPU, NCCL on a GPU. Tensors are announced and sent in buckets, of which one
is copied at a time: what a swap takes of this machine's memory does not grow with the model. A
group whose members do not all answer ends after
`broadcast_timeout_s`, on the trainer's side at once where it gives up, so a dead engine holds up
nobody; whoever fails is in doubt, and is given the version from disk.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import torch
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import Backend, BroadcastOptions, ProcessGroup
from torch.distributed.distributed_c10d import (
    GroupName,
    _new_process_group_helper,
    _world,
    destroy_process_group,
)

from gateway.device import device
from gateway.engine.base import Bucket, Group, Receiver
from gateway.errors import EngineUnavailable
from gateway.records import PolicyRef, new_id
from trainer.compute import Compute

Weights = Callable[[], Iterator[tuple[str, torch.Tensor]]]

#: What is announced of tensors, and they themselves.
Filled = tuple[Bucket, list[torch.Tensor]]

#: Bytes of the tensors that one call announces, unless a single one is larger.
_BUCKET = 256 << 20


class Broadcast:
    """`weights` are those of the policy in memory, by their Hugging Face names.

    They are gone through twice, in the same order: for what is announced, and for what is sent.
    """

    def __init__(
        self, weights: Weights, compute: Compute, timeout_s: float, bucket: int = _BUCKET
    ) -> None:
        self._weights, self._compute, self._timeout_s = weights, compute, timeout_s
        self._bucket = bucket

    async def give(self, engine: Receiver, policy: PolicyRef) -> float:
        """Bring what is in memory to an engine as `policy`; the milliseconds of its pause.

        Raises EngineError: EngineRejected where it makes no group, and is as it was.
        """
        heads = await self._compute.run(self._heads)
        store = TCPStore(
            "0.0.0.0",  # noqa: S104 - engines are on other machines
            0,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=self._timeout_s),
        )
        group = Group(
            name=f"nextstate-{new_id().hex}",
            address=_address(engine.url),
            port=store.port,
            size=1 + await engine.ranks(),
            backend="gloo" if device() == "cpu" else "nccl",
        )
        try:
            return await self._through(engine, policy, heads, store, group)
        except RuntimeError as error:
            raise EngineUnavailable(f"the broadcast failed: {error}", engine=engine.name) from error

    async def _through(
        self,
        engine: Receiver,
        policy: PolicyRef,
        heads: list[Bucket],
        store: TCPStore,
        group: Group,
    ) -> float:
        # A rank waits for the others, so both sides at once.
        made = asyncio.create_task(asyncio.to_thread(_joined, store, group, self._timeout_s))
        try:
            await engine.join(group)
            ranks = await made
        except BaseException:
            made.cancel()
            raise

        filled = bucketed(self._weights(), self._bucket)

        async def send(number: int) -> None:
            head, tensors = await self._compute.run(lambda: next(filled))
            if head != heads[number]:
                raise RuntimeError(f"bucket {number} is not what was announced")
            await asyncio.to_thread(_send, ranks, tensors, group.backend)

        try:
            return await engine.receive(policy, group, heads, send)
        finally:
            await asyncio.to_thread(destroy_process_group, ranks)
            await engine.leave(group)

    def _heads(self) -> list[Bucket]:
        """What is to be announced; of the tensors themselves nothing is kept."""
        told = ((name, tensor.to("meta")) for name, tensor in self._weights())
        return [head for head, _ in bucketed(told, self._bucket)]


def bucketed(weights: Iterator[tuple[str, torch.Tensor]], size: int = _BUCKET) -> Iterator[Filled]:
    """Copies of tensors in their order, in pieces of about `size` bytes, one made at a time."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        if tensors and sum(one.nbytes for one in tensors.values()) + tensor.nbytes > size:
            yield _filled(tensors)
            tensors = {}
        tensors[name] = tensor.detach().clone().contiguous()
    if tensors:
        yield _filled(tensors)


def _filled(tensors: dict[str, torch.Tensor]) -> Filled:
    head = Bucket(
        names=tuple(tensors),
        dtypes=tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()),
        shapes=tuple(tuple(tensor.shape) for tensor in tensors.values()),
    )
    return head, list(tensors.values())


def _joined(store: TCPStore, group: Group, timeout_s: float) -> ProcessGroup:
    """Blocks until every rank is there. Raises RuntimeError after the time-out."""
    made: ProcessGroup
    made, _ = _new_process_group_helper(
        group.size,
        0,
        [],
        Backend(group.backend),
        PrefixStore(group.name, store),
        group_name=GroupName(group.name),
        timeout=timedelta(seconds=timeout_s),
    )
    # Where torch looks for what it has to forget.
    _world.pg_group_ranks[made] = {rank: rank for rank in range(group.size)}
    return made


def _send(group: ProcessGroup, tensors: list[torch.Tensor], backend: str) -> None:
    """Blocks until every rank has them."""
    options = BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    for tensor in tensors:
        group.broadcast([tensor.cuda() if backend == "nccl" else tensor], options).wait()


def _address(url: str) -> str:
    """By which an engine at `url` finds this machine."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))
        name: str = probe.getsockname()[0]
        return name
