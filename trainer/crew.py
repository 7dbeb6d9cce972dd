"""How what rank 0 does with its policies is done by all ranks.

    rank 0    claim -> Learner.train ----> advance -> publish
                          |  order: lineage, method, arguments
    others    wait -> Learner.train ----> wait

Rank 0 alone has a database and engines. Its learners tell the others what they are about to do;
each rank then does it, and the numbers meet inside the back end. While there is nothing to do, a
beat goes round, so that a rank that died is noticed by all within a known time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gateway.errors import ConfigError, NextstateError, RankLost, TrainerError
from gateway.records import PolicyRef, TrainingSample
from gateway.store.lineages import Lineage
from trainer.backends.base import Backend, Proof
from trainer.checkpoint import Written
from trainer.config import TrainerConfig
from trainer.distributed import World
from trainer.learner import Learner


@dataclass(frozen=True, slots=True)
class Order:
    """A method of the learner of a lineage, or a word of the crew's own, and its arguments."""

    word: str
    lineage: str = ""
    arguments: tuple[Any, ...] = ()


_BEAT, _BUILD, _END = "beat", "build", "end"
_OF_A_MACHINE = {"threads", "metrics_host", "metrics_port"}


class Crew:
    """Rank 0's side. Orders and beats come from different threads, one at a time."""

    def __init__(self, world: World, beat_s: float) -> None:
        self.world, self._beat_s = world, beat_s
        self._busy = threading.Lock()
        self._ended = False

    @contextmanager
    def order(self, word: str, lineage: str = "", *arguments: Any) -> Iterator[None]:
        """Have all ranks do what is done inside. Raises what any of them raised, or RankLost."""
        with self._busy:
            self.world.share(Order(word, lineage, arguments))
            with self.world.together():
                yield

    def build(self, lineage: Lineage, make: Callable[[], Learner]) -> Learner:
        """Make the learner of a lineage on all ranks."""
        with self.order(_BUILD, lineage.id.hex, lineage):
            return make()

    async def beat(self) -> None:
        """Look for ever whether all ranks are there. Raises RankLost."""
        while True:
            await asyncio.sleep(self._beat_s)
            await asyncio.to_thread(self._beat)

    def end(self) -> None:
        """Let the other ranks go; once one is lost, they have ended or wait for nothing."""
        if not self.world.broken:
            with contextlib.suppress(RankLost), self.order(_END):
                self._ended = True

    def _beat(self) -> None:
        # Whoever is at an order is in touch already.
        if self._busy.acquire(blocking=False):
            try:
                # A rank that an order has lost is known: whoever gave it gives the samples back.
                if self._ended or self.world.broken:
                    return
                self.world.share(Order(_BEAT))
                self.world.barrier()
            finally:
                self._busy.release()


class LeadingLearner(Learner):
    """Rank 0's: whatever it is told, all ranks do."""

    def __init__(
        self, backend: Backend, config: TrainerConfig, root: Path, crew: Crew, lineage: str
    ) -> None:
        super().__init__(backend, config, root, crew.world)
        self._crew, self._lineage = crew, lineage

    def restore(self, policy: PolicyRef, checkpoint: str | None) -> None:
        with self._crew.order("restore", self._lineage, policy, checkpoint):
            super().restore(policy, checkpoint)

    def train(
        self, samples: Sequence[TrainingSample], cancelled: Callable[[], bool]
    ) -> dict[str, float]:
        with self._crew.order("train", self._lineage, tuple(samples), _never):
            return super().train(samples, cancelled)

    def proof(self) -> Proof:
        with self._crew.order("proof", self._lineage):
            return super().proof()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Refused: all ranks would have to gather them, and rank 0 alone was asked."""
        raise TrainerError("the weights of several ranks go to engines by disk")

    def write(self, version: int) -> Written:
        with self._crew.order("write", self._lineage, version):
            return super().write(version)


def agree(world: World, config: TrainerConfig) -> None:
    """Raise ConfigError on all ranks where one has other settings: it would train another policy.

    What concerns a machine alone may differ.
    """
    every = world.gather(config.model_dump(mode="json", exclude=_OF_A_MACHINE))
    for rank, theirs in enumerate(every):
        if other := [name for name in every[0] if theirs[name] != every[0][name]]:
            raise ConfigError(f"trainer.{other[0]} of rank {rank} is not that of rank 0")


def follow(world: World, make: Callable[[Lineage], Learner]) -> None:
    """What every other rank does, until rank 0 lets it go. Raises RankLost."""
    learners: dict[str, Learner] = {}
    while True:
        order: Order = world.share()
        if order.word == _BEAT:
            world.barrier()
            continue
        try:
            with world.together():
                if order.word == _END:
                    return
                if order.word == _BUILD:
                    (lineage,) = order.arguments
                    learners[order.lineage] = make(lineage)
                else:
                    getattr(learners[order.lineage], order.word)(*order.arguments)
        except RankLost:
            raise
        except (NextstateError, OSError):
            # Rank 0 has it too, and says what is to be done about it.
            continue


def _never() -> bool:
    """Only rank 0 is asked to end a step."""
    return False
