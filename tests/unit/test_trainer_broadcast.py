"""Weights on their way from memory to memory: pieces, ranks, and ranks that never answer."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from gateway.engine.base import Bucket, Group
from gateway.errors import EngineRejected, EngineUnavailable
from gateway.records import PolicyKind, PolicyRef, new_id
from trainer.broadcast import Broadcast, bucketed
from trainer.compute import Compute

WEIGHTS = {
    "a": torch.arange(6.0).reshape(3, 2),
    "b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "c": torch.ones(4),
}
POLICY = PolicyRef(lineage_id=new_id(), version=1, kind=PolicyKind.FULL)


def test_pieces_hold_everything_once_in_its_order() -> None:
    found = list(bucketed(iter(WEIGHTS.items()), size=28))
    # 24 and 4 bytes are one piece; 16 more would be too much.
    assert [head for head, _ in found] == [
        Bucket(names=("a", "b"), dtypes=("float32", "bfloat16"), shapes=((3, 2), (2,))),
        Bucket(names=("c",), dtypes=("float32",), shapes=((4,),)),
    ]
    sent = [tensor for _, tensors in found for tensor in tensors]
    assert all(torch.equal(one, other) for one, other in zip(sent, WEIGHTS.values(), strict=True))
    # What is trained on meanwhile does not change what is sent.
    assert not {one.data_ptr() for one in sent} & {one.data_ptr() for one in WEIGHTS.values()}
    assert len(list(bucketed(iter(WEIGHTS.items()), size=1))) == 3


#: The other rank, as engines make it: joins, takes what it is told of, and keeps it.
RANK = """
import json, os, sys
from datetime import timedelta
import torch
from torch.distributed import Backend, PrefixStore, TCPStore, broadcast
from torch.distributed.distributed_c10d import _new_process_group_helper, _world

name, address, port, out = sys.argv[1:]
limit = timedelta(seconds=20)
store = PrefixStore(name, TCPStore(address, int(port), 2, is_master=False, timeout=limit))
ranks, _ = _new_process_group_helper(
    2, 1, [], Backend("gloo"), store, group_name=name, timeout=limit
)
_world.pg_group_ranks[ranks] = {0: 0, 1: 1}
print("joined", flush=True)
found = {}
for line in sys.stdin:
    for name, dtype, shape in json.loads(line):
        found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        broadcast(found[name], src=0, group=ranks)
torch.save(found, out)
# The group's threads may still run, and the end of an interpreter does not wait for them.
os._exit(0)
"""


class Rank:
    """An engine of one rank, in a process of its own."""

    name, url = "rank", "http://127.0.0.1:9"

    def __init__(self, out: Path | None = None) -> None:
        self._out = out
        self._process: asyncio.subprocess.Process | None = None
        self.received: dict[str, torch.Tensor] = {}
        self.left: list[str] = []

    async def ranks(self) -> int:
        return 1

    async def join(self, group: Group) -> None:
        assert (group.size, group.backend) == (2, "gloo")
        arguments = (group.name, group.address, str(group.port), str(self._out))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", RANK, *arguments, stdin=PIPE, stdout=PIPE
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"joined\n"

    async def receive(
        self,
        policy: PolicyRef,
        group: Group,
        buckets: Sequence[Bucket],
        send: Callable[[int], Awaitable[None]],
    ) -> float:
        assert self._out is not None
        assert self._process is not None
        assert self._process.stdin is not None
        for number, head in enumerate(buckets):
            told = list(zip(head.names, head.dtypes, head.shapes, strict=True))
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            await send(number)
        self._process.stdin.close()
        assert await self._process.wait() == 0
        self.received = torch.load(self._out)
        return 1.0

    async def leave(self, group: Group) -> None:
        self.left.append(group.name)

    async def killed(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()


class Refuses(Rank):
    async def join(self, group: Group) -> None:
        raise EngineRejected("no groups here", engine=group.name)


class Absent(Rank):
    async def join(self, group: Group) -> None:
        """Says that it has joined."""


Give = Callable[[Rank, float], Awaitable[float]]


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")

    async def given(rank: Rank, timeout_s: float) -> float:
        compute = Compute()
        weights = Broadcast(lambda: iter(WEIGHTS.items()), compute, timeout_s)
        try:
            return await weights.give(rank, POLICY)
        finally:
            compute.close()

    return given


class Counting(Rank):
    """Looks at how far the trainer has come whenever a bucket is sent."""

    def __init__(self, out: Path, copied: list[str]) -> None:
        super().__init__(out)
        self._copied = copied
        self.seen: list[list[str]] = []

    async def receive(
        self,
        policy: PolicyRef,
        group: Group,
        buckets: Sequence[Bucket],
        send: Callable[[int], Awaitable[None]],
    ) -> float:
        async def watched(number: int) -> None:
            await send(number)
            self.seen.append(list(self._copied))

        self._copied.clear()
        return await super().receive(policy, group, buckets, watched)


async def test_one_bucket_is_copied_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")
    read: list[str] = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in WEIGHTS.items():
            read.append(name)
            yield name, tensor

    rank, compute = Counting(tmp_path / "received", read), Compute()
    try:
        await Broadcast(weights, compute, 60, bucket=1).give(rank, POLICY)
    finally:
        compute.close()
    # A tensor a bucket; that one is full is known by the next tensor, which is not copied yet.
    assert rank.seen == [["a", "b"], ["a", "b", "c"], ["a", "b", "c"]]
    assert all(torch.equal(rank.received[name], WEIGHTS[name]) for name in WEIGHTS)


async def test_weights_that_are_not_those_announced_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")
    orders = [list(WEIGHTS), list(reversed(WEIGHTS))]
    rank, compute = Rank(tmp_path / "received"), Compute()
    try:
        with pytest.raises(EngineUnavailable, match="not what was announced"):
            await Broadcast(
                lambda: ((name, WEIGHTS[name]) for name in orders.pop(0)), compute, 60
            ).give(rank, POLICY)
    finally:
        compute.close()
        await rank.killed()


async def test_a_rank_has_what_was_in_memory(give: Give, tmp_path: Path) -> None:
    rank = Rank(tmp_path / "received")
    assert await give(rank, 60) == 1.0
    assert list(rank.received) == list(WEIGHTS)
    assert all(torch.equal(rank.received[name], WEIGHTS[name]) for name in WEIGHTS)
    assert len(rank.left) == 1


@pytest.mark.parametrize(
    ("kind", "error"), [(Refuses, EngineRejected), (Absent, EngineUnavailable)]
)
async def test_ranks_that_fail_are_given_up(
    give: Give, kind: type[Rank], error: type[Exception]
) -> None:
    async with asyncio.timeout(120):
        with pytest.raises(error):
            await give(kind(), 1)
