"""Functions run by two processes that train together over gloo.

Loading torch takes seconds, so a module starts its two ranks once and gives them many jobs.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import multiprocessing

from tests.fixtures_engine import free_port
from trainer.distributed import World, place

Job = Callable[..., Any]


class Ranks:
    """Two ranks that wait for jobs: functions of a module, called with a World and arguments."""

    def __init__(self, connections: list[Any]) -> None:
        self._connections = connections

    def __call__(self, job: Job, *arguments: Any) -> list[Any]:
        """What the job returns on each rank. Raises what it raised on the first that failed."""
        for connection in self._connections:
            connection.send((job, arguments))
        answers = [connection.recv() for connection in self._connections]
        for rank, (failure, _) in enumerate(answers):
            assert failure is None, f"rank {rank}:\n{failure}"
        return [found for _, found in answers]


@contextmanager
def two_ranks() -> Iterator[Ranks]:
    context = multiprocessing.get_context("spawn")
    port, connections, processes = free_port(), [], []
    for rank in range(2):
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, rank, port), daemon=True)
        process.start()
        connections.append(here)
        processes.append(process)
    try:
        yield Ranks(connections)
    finally:
        for connection in connections:
            connection.send(None)
        for process in processes:
            process.join(30)
            process.kill()


def _serve(connection: Any, rank: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2",
        LOCAL_RANK=str(rank),
    )  # fmt: skip
    world = World.open(place(), "cpu", 60.0)
    while (order := connection.recv()) is not None:
        job, arguments = order
        try:
            answer = None, job(world, *arguments)
        except Exception:  # noqa: BLE001 - the test raises it
            answer = traceback.format_exc(), None
        connection.send(answer)
    world.close()
