"""The trainer's process: what it opens, builds and closes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

from gateway.device import device
from gateway.engine.base import Engine
from gateway.engine.sglang import SglangEngine
from gateway.errors import ConfigError, StoreUnavailable
from gateway.records import PolicyKind
from gateway.store.database import Database
from gateway.store.lineages import Lineage, LineageStore
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.workers import Heartbeat, Workers
from gateway.telemetry import configure_logging, get_logger
from trainer.compute import Compute
from trainer.config import TrainerSettings
from trainer.delivery import Delivery, within
from trainer.drain import Drain
from trainer.learner import Learner
from trainer.loop import Trainer
from trainer.publish import Publisher
from trainer.sampling import Sampler

log = get_logger(__name__)

#: Sent by whoever finishes a judgement, with the lineage in hex.
SAMPLES_CHANNEL = "nextstate_samples"


def main(settings: TrainerSettings) -> None:
    """Train until SIGTERM or SIGINT.

    Raises ConfigError for settings or a model that cannot be trained, RevisionMismatch for a
    database of another build, StoreError where Postgres refuses the connection, TrainerError
    after too many failed steps in a row.
    """
    configure_logging(settings.log, "trainer")
    asyncio.run(_until_signalled(settings))


async def _until_signalled(settings: TrainerSettings) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    await run(settings, stop)


async def run(
    settings: TrainerSettings, stop: asyncio.Event, engines: Sequence[Engine] | None = None
) -> None:
    """Train every configured lineage until `stop` is set; the first that fails ends them all."""
    async with AsyncExitStack() as stack:
        database = await _database(settings, stop)
        if database is None:
            return
        stack.push_async_callback(database.close)
        if engines is None:
            engines = [SglangEngine(engine) for engine in settings.token_engines]
            for engine in engines:
                stack.push_async_callback(engine.close)
        workshop = _Workshop(settings, database, engines, stop)
        stack.push_async_callback(workshop.close)
        for name in settings.trainer.lineages:
            lineage = await _lineage(LineageStore(database), name, settings, stop)
            if lineage is None:
                return
            await workshop.add(lineage)
        await database.listen(SAMPLES_CHANNEL, workshop.wake)
        heartbeat = Heartbeat(database, "trainer", workshop.report)
        if not await _started(heartbeat, settings, stop):
            return
        stack.push_async_callback(heartbeat.close)
        log.info("trainer_started", lineages=settings.trainer.lineages, device=device())
        await workshop.run()
        log.info("trainer_stopped")


class _Workshop:
    """The trainers of one process, which share its compute thread and its engines."""

    def __init__(
        self,
        settings: TrainerSettings,
        database: Database,
        engines: Sequence[Engine],
        stop: asyncio.Event,
    ) -> None:
        self._settings, self._database = settings, database
        self._engines, self._stop = engines, stop
        self._compute = Compute()
        self._trainers: dict[str, Trainer] = {}
        self._drains: list[Drain] = []

    async def add(self, lineage: Lineage) -> None:
        """Load the base model and build what trains a lineage. Raises ConfigError."""
        settings, config = self._settings, self._settings.trainer
        learner = await self._compute.run(lambda: make_learner(settings, lineage))
        policies, samples = PolicyStore(self._database), SampleStore(self._database)
        drain = Drain(lineage.id, self._engines, Workers(self._database), config.publish)
        self._drains.append(drain)
        delivery = Delivery(
            lineage.id,
            config=config,
            policies=policies,
            learner=learner,
            publisher=Publisher(policies, self._engines, config.publish),
            drain=drain,
            compute=self._compute,
            stop=self._stop,
        )
        self._trainers[lineage.id.hex] = Trainer(
            lineage.id,
            config=config,
            samples=samples,
            policies=policies,
            sampler=Sampler(samples, lineage.id, settings, learner.vocab_size),
            learner=learner,
            delivery=delivery,
            compute=self._compute,
            stop=self._stop,
        )

    def wake(self, lineage: str) -> None:
        """Samples of a lineage (hex) have come in; of any where notices may have been missed."""
        for name, trainer in self._trainers.items():
            if lineage in ("", name):
                trainer.wake()

    def report(self) -> dict[str, object]:
        return {"lineages": {name: trainer.report for name, trainer in self._trainers.items()}}

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for trainer in self._trainers.values():
                    group.create_task(trainer.run())
        except BaseExceptionGroup as errors:
            # Callers know one tree of errors, and no groups.
            raise errors.exceptions[0] from None

    async def close(self) -> None:
        for drain in self._drains:
            await drain.close()
        await asyncio.to_thread(self._compute.close)


def make_learner(settings: TrainerSettings, lineage: Lineage) -> Learner:
    """The back end on the base model; heavy. Raises ConfigError."""
    from trainer.backends.torch_backend import TorchBackend

    backend = TorchBackend(settings.model_directory, settings.trainer, device())
    return Learner(backend, settings.trainer, settings.trainer.directory / lineage.id.hex)


async def _database(settings: TrainerSettings, stop: asyncio.Event) -> Database | None:
    """A database of the right revision, waited for; None where `stop` came first."""
    while not stop.is_set():
        try:
            database = await Database.open(
                settings.database, settings.database_url, application="trainer"
            )
            try:
                await database.check_revision()
            except BaseException:
                await database.close()
                raise
        except StoreUnavailable as error:
            log.warning("store_unavailable", error=error.message)
            await within(settings.trainer.poll_s, stop)
        else:
            return database
    return None


async def _lineage(
    lineages: LineageStore, name: str, settings: TrainerSettings, stop: asyncio.Event
) -> Lineage | None:
    """A lineage that may be trained, waited for until someone makes it.

    Raises ConfigError for one that is not to be trained, or not by this back end.
    """
    while not stop.is_set():
        try:
            found = await lineages.named(name)
        except StoreUnavailable as error:
            log.warning("store_unavailable", error=error.message)
        else:
            if found is None:
                log.warning("lineage_missing", lineage=name)
            elif not found.trains:
                raise ConfigError(f"lineage {name!r} is not to be trained")
            elif found.kind is not PolicyKind.LORA:
                raise ConfigError(f"lineage {name!r} is {found.kind}; this trainer trains lora")
            else:
                return found
        await within(settings.trainer.poll_s, stop)
    return None


async def _started(heartbeat: Heartbeat, settings: TrainerSettings, stop: asyncio.Event) -> bool:
    """Report the first sign of life, also where Postgres has just gone away again."""
    while not stop.is_set():
        try:
            await heartbeat.start()
        except StoreUnavailable as error:
            log.warning("store_unavailable", error=error.message)
            await within(settings.trainer.poll_s, stop)
        else:
            return True
    return False
