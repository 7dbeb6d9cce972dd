"""The trainer's process: what it opens, builds and closes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from gateway.device import device
from gateway.engine.base import Engine
from gateway.engine.sglang import SglangEngine
from gateway.errors import ConfigError, StoreUnavailable
from gateway.store.database import Database
from gateway.store.evidence import Evidence
from gateway.store.lineages import Lineage, LineageStore
from gateway.store.movers import EngineMovers
from gateway.store.moves import PolicyMoves
from gateway.store.pauses import Paused, PauseFollower
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.workers import Heartbeat, Workers
from gateway.telemetry import configure_logging, get_logger
from gateway.telemetry.scrape import served
from gateway.telemetry.tracing import Traces
from trainer.broadcast import Broadcast
from trainer.checkpoint import checked
from trainer.compute import Compute
from trainer.config import TrainerSettings
from trainer.crew import Crew, LeadingLearner, agree, follow
from trainer.delivery import Delivery, within
from trainer.distributed import World, place
from trainer.drain import Drain
from trainer.learner import Learner
from trainer.lives import Lives
from trainer.loop import Trainer
from trainer.metrics import Recorder, TrainerMetrics
from trainer.publish import Publisher
from trainer.replace import Replacement
from trainer.sampling import Sampler
from trainer.watch import Watch

log = get_logger(__name__)

#: Sent by whoever finishes a judgement, with the lineage in hex.
SAMPLES_CHANNEL = "nextstate_samples"
#: Sent by whoever moves a lineage to another version.
POLICY_CHANNEL = "nextstate_policy"


def main(settings: TrainerSettings, engines: Sequence[Engine] | None = None) -> None:
    """Train until SIGTERM or SIGINT; under torchrun as one rank of many.

    Raises ConfigError for settings or a model that cannot be trained, RevisionMismatch for a
    database of another build, StoreError where Postgres refuses the connection, TrainerError
    after too many failed steps in a row, RankLost where another rank dies or hangs.
    """
    configure_logging(settings.log, "trainer")
    here, timing = place(), settings.trainer.distributed
    if here.size == 1:
        asyncio.run(_until_signalled(settings, engines, None))
        return
    world = World.open(here, device(), timing.timeout_s)
    try:
        agree(world, settings.trainer)
        if here.leads:
            asyncio.run(_until_signalled(settings, engines, Crew(world, timing.beat_s)))
        else:
            # Who is told to end tells rank 0, and rank 0 the others.
            for name in (signal.SIGTERM, signal.SIGINT):
                signal.signal(name, signal.SIG_IGN)
            follow(world, lambda lineage: make_learner(settings, lineage, world))
    finally:
        world.close()


async def _until_signalled(
    settings: TrainerSettings, engines: Sequence[Engine] | None, crew: Crew | None
) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    await run(settings, stop, engines, crew)


async def run(
    settings: TrainerSettings,
    stop: asyncio.Event,
    engines: Sequence[Engine] | None = None,
    crew: Crew | None = None,
) -> None:
    """Train every configured lineage until `stop` is set; the first that fails ends them all.

    With a `crew` every rank of it trains along, is looked for from the start, and is let go at
    the end.
    """
    if crew is None:
        await _run(settings, stop, engines, None)
        return
    try:
        async with asyncio.TaskGroup() as group:
            beats = group.create_task(crew.beat())
            await _run(settings, stop, engines, crew)
            beats.cancel()
    except BaseExceptionGroup as errors:
        # Callers know one tree of errors, and no groups.
        raise errors.exceptions[0] from None


async def _run(
    settings: TrainerSettings,
    stop: asyncio.Event,
    engines: Sequence[Engine] | None,
    crew: Crew | None,
) -> None:
    async with AsyncExitStack() as stack:
        if crew is not None:
            stack.callback(crew.end)
        database = await _database(settings, stop)
        if database is None:
            return
        stack.push_async_callback(database.close)
        if engines is None:
            engines = [SglangEngine(engine) for engine in settings.token_engines]
            for engine in engines:
                stack.push_async_callback(engine.close)
        registry = CollectorRegistry()
        traces = Traces.configured(settings.tracing, "trainer")
        if traces is not None:
            stack.push_async_callback(traces.close)
        workshop = _Workshop(
            settings, database, engines, stop, TrainerMetrics(registry), traces=traces, crew=crew
        )
        await workshop.pauses.refresh()
        config = settings.trainer
        if config.metrics_port is not None:
            port = stack.enter_context(
                served(registry, config.metrics_host, config.metrics_port, "trainer.metrics_port")
            )
            log.info("metrics_served", port=port)
        stack.push_async_callback(workshop.close)
        for name in settings.trainer.lineages:
            lineage = await _lineage(LineageStore(database), name, settings, stop)
            if lineage is None:
                return
            await workshop.add(lineage)
        await database.listen(SAMPLES_CHANNEL, workshop.wake)
        await database.listen(POLICY_CHANNEL, workshop.wake)
        heartbeat = Heartbeat(database, "trainer", workshop.report)
        if not await _started(heartbeat, settings, stop):
            return
        stack.push_async_callback(heartbeat.close)
        ranks = 1 if crew is None else crew.world.size
        log.info("trainer_started", lineages=config.lineages, device=device(), ranks=ranks)
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
        recorder: Recorder,
        *,
        traces: Traces | None,
        crew: Crew | None,
    ) -> None:
        self._traces, self._crew = traces, crew
        self._settings, self._database = settings, database
        self._engines, self._stop, self._recorder = engines, stop, recorder
        self._compute = Compute()
        self._trainers: dict[str, Trainer] = {}
        self._background: list[Drain | Watch] = []
        self.pauses = PauseFollower(database, changed=lambda: self.wake(""))

    async def add(self, lineage: Lineage) -> None:
        """Load the base model and build what trains a lineage. Raises ConfigError."""
        settings, config = self._settings, self._settings.trainer
        learner = await self._compute.run(lambda: self._learner(lineage))
        base = str(settings.model_directory)
        policies, samples = PolicyStore(self._database, base), SampleStore(self._database)
        publish, movers = config.publish, EngineMovers(self._database)
        broadcast = None
        if publish.transfer == "broadcast" and self._crew is None:
            broadcast = Broadcast(learner.weights, self._compute, publish.broadcast_timeout_s)
        elif publish.transfer == "broadcast":
            # No rank holds all of the weights.
            log.warning("broadcast_not_possible", lineage=lineage.id.hex)
        replacement = Replacement(
            policies,
            self._engines,
            publish,
            movers,
            self._compute,
            check=checked,
            broadcast=broadcast,
        )
        lives = Lives(policies, self._traces)
        drain = Drain(lineage.id, self._engines, Workers(self._database), config.publish)
        moves, evidence = PolicyMoves(self._database), Evidence(self._database)
        watch = Watch(lineage.id, policies, moves, evidence, config.publish.gate)
        self._background += (drain, watch)
        delivery = Delivery(
            lineage.id,
            config=config,
            policies=policies,
            learner=learner,
            publisher=Publisher(policies, self._engines, config.publish, replacement),
            drain=drain,
            watch=watch,
            compute=self._compute,
            stop=self._stop,
            lives=lives,
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
            lives=lives,
            recorder=self._recorder,
            paused=lambda: self.pauses.is_paused(Paused.TRAINING, lineage.id),
        )

    def _learner(self, lineage: Lineage) -> Learner:
        crew = self._crew
        if crew is None:
            return make_learner(self._settings, lineage)
        return crew.build(lineage, lambda: make_learner(self._settings, lineage, crew.world, crew))

    def wake(self, lineage: str) -> None:
        """Samples of a lineage (hex) have come in; of any where notices may have been missed."""
        for name, trainer in self._trainers.items():
            if lineage in ("", name):
                trainer.wake()

    def report(self) -> dict[str, object]:
        return {
            "batch": self._settings.batch,
            "lineages": {name: trainer.report for name, trainer in self._trainers.items()},
        }

    async def run(self) -> None:
        following = asyncio.create_task(self.pauses.run())
        try:
            async with asyncio.TaskGroup() as group:
                for trainer in self._trainers.values():
                    group.create_task(trainer.run())
        except BaseExceptionGroup as errors:
            # Callers know one tree of errors, and no groups.
            raise errors.exceptions[0] from None
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def close(self) -> None:
        for task in self._background:
            await task.close()
        await asyncio.to_thread(self._compute.close)


def make_learner(
    settings: TrainerSettings,
    lineage: Lineage,
    world: World | None = None,
    crew: Crew | None = None,
) -> Learner:
    """The back end on the base model; heavy. With a `crew` it leads the others. Raises ConfigError.

    In a world of several ranks it is made on all of them at a time.
    """
    from trainer.backends.build import build_backend

    config, root = settings.trainer, settings.trainer.directory / lineage.id.hex
    world = world or World.alone()
    with world.together():  # Or those that have the model wait for one that has none.
        model = settings.model_directory
    backend = build_backend(model, config, device(), lineage.kind, world)
    if crew is not None:
        return LeadingLearner(backend, config, root, crew, lineage.id.hex)
    return Learner(backend, config, root, world)


async def _database(settings: TrainerSettings, stop: asyncio.Event) -> Database | None:
    """A database of the right revision, waited for; None where `stop` came first."""
    while not stop.is_set():
        try:
            database = await Database.open(
                settings.database, settings.database_url, application="trainer"
            )
            try:
                await database.check_revision(newest=True)
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

    Raises ConfigError for one that is not to be trained.
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
