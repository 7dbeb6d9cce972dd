"""The processes that train one policy together: who they are, and what they agree on.

`torchrun` starts them and names each in its environment; without it the world is one process, and
nothing here costs anything. What is collective is called by all ranks in the same order. It goes
over a gloo group of its own, whatever the back end computes with, so that it never waits for a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from gateway.device import Device
from gateway.errors import ConfigError, NextstateError, RankLost, TrainerError
from trainer.micro_batch import MicroBatch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands; `local_rank` is its place on its machine, and its GPU's."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Rank 0 alone talks to Postgres and to engines, and writes what is not sharded."""
        return self.rank == 0


def place() -> Place:
    """As torchrun says. Raises ConfigError where what it says is no number."""
    try:
        rank, size, local = (
            int(os.environ.get(name, default))
            for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
        )
    except ValueError as error:
        raise ConfigError(f"RANK, WORLD_SIZE and LOCAL_RANK are numbers: {error}") from None
    return Place(rank, size, local)


class World:
    """All ranks of a job. Every method but `close` is collective; a lost rank is RankLost.

    A rank is lost whose connection ends, or that takes longer than the time-out. The others are
    then out of step: what is left to them is to end.
    """

    def __init__(
        self, here: Place, group: dist.ProcessGroup | None = None, timeout_s: float = 600.0
    ) -> None:
        self.here, self._group, self.timeout = here, group, timedelta(seconds=timeout_s)
        self._broken = False

    @classmethod
    def alone(cls) -> World:
        return cls(Place())

    @classmethod
    def open(cls, here: Place, device: Device, timeout_s: float) -> World:
        """Meet the other ranks. Raises RankLost where they do not come in time."""
        if here.size == 1:
            return cls(here)
        bound = timedelta(seconds=timeout_s)
        if device == "cuda":
            torch.cuda.set_device(here.local_rank)
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, timeout=bound, rank=here.rank, world_size=here.size)
            group = dist.new_group(backend="gloo", timeout=bound)
        except ValueError as error:
            raise ConfigError(f"WORLD_SIZE is {here.size}, but {error}") from None
        except RuntimeError as error:
            raise RankLost(f"the ranks of this job did not meet: {error}") from error
        return cls(here, group, timeout_s)

    @property
    def rank(self) -> int:
        return self.here.rank

    @property
    def size(self) -> int:
        return self.here.size

    @property
    def leads(self) -> bool:
        return self.here.leads

    @property
    def broken(self) -> bool:
        """Whether the ranks are out of step: no more can be told to others."""
        return self._broken

    def share(self, value: T | None = None) -> T:
        """What rank 0 gives, on every rank; anything that pickles."""
        box = [value]
        if self._group is not None:
            with self._guarded():
                dist.broadcast_object_list(box, src=0, group=self._group)
        found: T = box[0]  # type: ignore[assignment]
        return found

    def gather(self, value: T) -> list[T]:
        """What each rank gives, by rank, on every rank; anything that pickles."""
        if self._group is None:
            return [value]
        found: list[T | None] = [None] * self.size
        with self._guarded():
            dist.all_gather_object(found, value, group=self._group)
        return found  # type: ignore[return-value]

    def total(self, value: float) -> float:
        """The sum over ranks; the same bits on each."""
        return sum(self.gather(value))

    def any(self, flag: bool) -> bool:
        """Whether it is so on some rank."""
        if self._group is None:
            return flag
        found = torch.tensor(int(flag))
        with self._guarded():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return bool(found)

    def barrier(self) -> None:
        if self._group is not None:
            with self._guarded():
                dist.monitored_barrier(self._group, timeout=self.timeout)

    def collect(self, mine: Mapping[int, T], count: int) -> list[T]:
        """What the ranks computed of a whole batch, in its order; see `split`."""
        whole = {place: one for part in self.gather(dict(mine)) for place, one in part.items()}
        return [whole[place] for place in range(count)]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what each rank does by itself or with the others: where one fails, all do.

        A rank that did not fail raises what the first of the others did.
        """
        own: NextstateError | OSError | None = None
        try:
            with self._guarded():
                yield
        except RankLost:
            raise
        except (NextstateError, OSError) as error:
            own = error
        except BaseException:
            # Nobody is told: the others find that this rank is gone.
            self._broken = self._group is not None
            raise
        failures = self.gather(None if own is None else _told(own))
        if own is not None:
            raise own
        for rank, failure in enumerate(failures):
            if failure is not None:
                raise _retold(failure, rank)

    def close(self) -> None:
        """Part from the others; once one is lost that would wait for it, and nothing is done."""
        if self._group is not None and not self._broken:
            dist.destroy_process_group()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What torch raises in a world of several ranks leaves the others waiting."""
        try:
            yield
        except RankLost:
            self._broken = True
            raise
        except RuntimeError as error:
            if self._group is None:
                raise
            # Gloo's own errors have no class: a closed connection is a RuntimeError.
            self._broken = True
            raise RankLost(f"rank {self.rank} is no longer in step: {error}") from error


def split(micro: Sequence[MicroBatch], rank: int, size: int) -> list[tuple[int | None, MicroBatch]]:
    """What one of `size` data-parallel ranks computes: places in the batch, and micro-batches.

    All ranks get equally many, those of one turn of about the same size. Who has none left
    computes an idle one (place None), since in a step every rank takes part in every pass.
    """
    if size == 1:
        return list(enumerate(micro))
    order = sorted(range(len(micro)), key=lambda place: (-micro[place].ids.numel(), place))
    turns = -(-len(order) // size)
    mine: list[tuple[int | None, MicroBatch]] = [(at, micro[at]) for at in order[rank::size]]
    return mine + [(None, MicroBatch.idle())] * (turns - len(mine))


def _told(error: NextstateError | OSError) -> tuple[type[Exception], str]:
    return type(error), str(error)


def _retold(failure: tuple[type[Exception], str], rank: int) -> Exception:
    """The failure of another rank as one of this one's."""
    kind, words = failure
    message = f"rank {rank}: {words}"
    if issubclass(kind, OSError):
        return OSError(message)
    make: Callable[[str], Exception] = (
        kind if issubclass(kind, TrainerError | ConfigError) else (TrainerError)
    )
    return make(message)
