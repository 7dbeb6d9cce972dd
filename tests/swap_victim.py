"""A trainer in a process of its own that brings whole weights to engines and kills itself there.

`python -m tests.swap_victim POINT PLACE`, the place a JSON file, see `Place`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn, cast
from uuid import UUID

from gateway.config import DatabaseSettings, EngineSettings
from gateway.engine.loading import Loading
from gateway.engine.sglang import SglangEngine
from gateway.records import PolicyRef
from gateway.store.database import Database
from gateway.store.evidence import Evidence
from gateway.store.leadership import Leadership
from gateway.store.movers import EngineMovers
from gateway.store.moves import PolicyMoves
from gateway.store.policies import PolicyStore
from gateway.store.workers import Workers
from tests.whole_weights import proof_of
from trainer import replace
from trainer.backends.base import Proof
from trainer.checkpoint import checked
from trainer.compute import Compute
from trainer.config import TrainerConfig
from trainer.delivery import Delivery
from trainer.drain import Drain
from trainer.learner import Learner
from trainer.lives import Lives
from trainer.publish import Publisher
from trainer.replace import Replacement
from trainer.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a trainer works with; `engines` are addresses by name."""

    database_url: str
    lineage: str
    model: str
    engines: dict[str, str]

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))


@dataclass(frozen=True, slots=True)
class Point:
    """The call of `owner.name` of that number, to that path, is the last that it comes to."""

    owner: type | ModuleType
    name: str
    when: Literal["before", "during", "after"]
    number: int = 1
    path: str | None = None


#: In the order in which a trainer comes by them.
POINTS: dict[str, Point] = {
    "leads": Point(PolicyStore, "become_leader", "after"),
    "about to take an engine's turn": Point(Replacement, "_one", "before"),
    "took the turn": Point(Replacement, "_tried", "before"),
    "noted what it computes": Point(Replacement, "_before", "after"),
    "paused it": Point(SglangEngine, "_control", "after", path="/pause_generation"),
    "is replacing": Point(Loading, "post", "during"),
    "replaced": Point(Loading, "post", "after"),
    "let it go on": Point(SglangEngine, "_control", "after", path="/continue_generation"),
    "proved": Point(replace, "difference", "after"),
    "recorded the swap": Point(PolicyStore, "record_swap", "after"),
    "about to take the next one's turn": Point(Replacement, "_one", "before", 2),
    "paused the next": Point(SglangEngine, "_control", "after", 2, path="/pause_generation"),
    "is replacing at the next": Point(Loading, "post", "during", 2),
    "replaced at the next": Point(Loading, "post", "after", 2),
    "proved the next": Point(replace, "difference", "after", 2),
    "recorded the next swap": Point(PolicyStore, "record_swap", "after", 2),
    "about to promote": Point(PolicyStore, "promote", "before"),
    "promoted": Point(PolicyStore, "promote", "after"),
}


class TableLearner:
    """Knows what fake engines must compute with a version's weights, and trains nothing."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._policy: PolicyRef | None = None

    def restore(self, policy: PolicyRef, checkpoint: str | None) -> None:
        self._policy = policy

    def proof(self) -> Proof:
        assert self._policy is not None
        return proof_of(self._model, self._policy)


@asynccontextmanager
async def trainer(place: Place) -> AsyncIterator[tuple[Delivery, PolicyStore]]:
    """What delivers versions of a lineage, over real stores and real connections."""
    async with AsyncExitStack() as stack:
        database = await Database.open(
            DatabaseSettings(), place.database_url, application="trainer"
        )
        stack.push_async_callback(database.close)
        engines = [
            SglangEngine(EngineSettings(name=name, url=url)) for name, url in place.engines.items()
        ]
        for engine in engines:
            stack.push_async_callback(engine.close)
        compute, lineage = Compute(), UUID(place.lineage)
        stack.callback(compute.close)
        config = TrainerConfig(
            directory=Path(place.model).parent, publish={"gate": {"mode": "off"}, "retry_s": 0.05}
        )
        policies, movers = PolicyStore(database, place.model), EngineMovers(database)
        replacement = Replacement(policies, engines, config.publish, movers, compute, check=checked)
        moves, evidence = PolicyMoves(database), Evidence(database)
        drain = Drain(lineage, engines, Workers(database), config.publish)
        watch = Watch(lineage, policies, moves, evidence, config.publish.gate)
        stack.push_async_callback(drain.close)
        stack.push_async_callback(watch.close)
        yield (
            Delivery(
                lineage,
                config=config,
                policies=policies,
                learner=cast("Learner", TableLearner(Path(place.model))),
                publisher=Publisher(policies, engines, config.publish, replacement),
                drain=drain,
                watch=watch,
                compute=compute,
                stop=asyncio.Event(),
                lives=Lives(policies, None),
            ),
            policies,
        )


async def lead(place: Place) -> PolicyRef:
    """Become the leader, as soon as nobody else is, and go on where the last one was."""
    async with trainer(place) as (delivery, policies):
        leadership: Leadership | None = None
        while leadership is None:
            leadership = await policies.become_leader(UUID(place.lineage))
            await asyncio.sleep(0.05)
        try:
            return await delivery.resume(leadership.epoch)
        finally:
            await leadership.release()


def arm(point: Point) -> None:
    """Replace what the point names by something deadly."""
    original, calls = getattr(point.owner, point.name), 0
    assert inspect.iscoroutinefunction(original)

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += point.path is None or point.path in args
        if calls != point.number or (point.path is not None and point.path not in args):
            return await original(*args, **kwargs)
        if point.when == "after":
            await original(*args, **kwargs)
        elif point.when == "during":
            # Whether it has begun by then or not: what follows has to hold for both.
            await asyncio.wait({asyncio.ensure_future(original(*args, **kwargs))}, timeout=0.1)
        die()

    setattr(point.owner, point.name, wrapped)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def main() -> None:
    name, file = sys.argv[1:]
    arm(POINTS[name])
    asyncio.run(lead(Place(**json.loads(Path(file).read_text()))))


async def killed(point: str, place: Place, home: Path) -> None:
    """Run a trainer until it dies at a point."""
    file = home / "place.json"
    place.write(file)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.swap_victim", point, str(file),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await asyncio.wait_for(process.communicate(), 200)
    assert process.returncode == -signal.SIGKILL, errors.decode()


if __name__ == "__main__":
    main()
