"""What the routes use, opened once a process and closed with it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self

from prometheus_client import CollectorRegistry

from gateway.api.limits import Limiter
from gateway.classify import Awareness
from gateway.config import Settings, config_file, load
from gateway.engine.openai import OpenAIEngine
from gateway.engine.pool import EnginePool
from gateway.engine.sglang import SglangEngine
from gateway.engine.text_pool import TextPool
from gateway.errors import ConfigError, InvalidRequest
from gateway.pipeline import Pipeline
from gateway.pipeline.admission import Admitter
from gateway.pipeline.admission_follower import Follower
from gateway.records import new_id
from gateway.redaction import Redactor
from gateway.store.admin import AdminReads
from gateway.store.admission import AdmissionStore
from gateway.store.awareness import AwarenessFollower
from gateway.store.conversations import ConversationStore
from gateway.store.database import Database
from gateway.store.drains import DrainFollower
from gateway.store.erasure import CHANNEL as ERASED
from gateway.store.idle import close_idle_sessions
from gateway.store.keys import KeyStore
from gateway.store.movers import EngineMovers
from gateway.store.pauses import PauseFollower
from gateway.store.policies import PolicyStore
from gateway.store.retention import keep_retention
from gateway.store.tenants import TenantStore
from gateway.store.turns import TurnStore
from gateway.store.workers import Heartbeat
from gateway.store.writer import TurnWriter
from gateway.telemetry.metrics import ServingMetrics
from gateway.telemetry.tracing import Traces
from gateway.tokens.choice import make_renderer
from gateway.tokens.no_model import NoRenderer
from gateway.tokens.renderer import Renderer
from gateway.tokens.tokenizer import Tokenizer
from gateway.wire.media import MediaRules

#: Sent by whoever promotes a version.
POLICY_CHANNEL = "nextstate_policy"


class Services:
    """Open connections, tasks and stores of one gateway process."""

    settings: Settings
    database: Database
    keys: KeyStore
    turns: TurnStore
    writer: TurnWriter
    pool: EnginePool
    admitter: Admitter
    pipeline: Pipeline
    awareness: Awareness
    rules: AwarenessFollower
    pauses: PauseFollower
    drains: DrainFollower
    tenants: TenantStore
    admin: AdminReads
    conversations: ConversationStore
    limiter: Limiter
    media: MediaRules
    redactor: Redactor | None
    traces: Traces | None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.draining = False
        self.worker_id = new_id()
        self.admitter = Admitter(settings.freshness)
        self.registry = CollectorRegistry()
        self.metrics = ServingMetrics(self.registry)
        self.limiter = Limiter(settings.limits, replicas=settings.gateway.replicas)
        self._tokenizer: Tokenizer | None = None
        self._forgetting: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """Connect to everything.

        Raises ConfigError, StoreUnavailable or RevisionMismatch with nothing left open. An engine
        that is not up yet is no error: requests are told so until it is.
        """
        services = cls(settings)
        try:
            await services._open()
        except BaseException:
            await services.close()
            raise
        return services

    async def close(self) -> None:
        """Close in reverse order: what serves first, what stores last."""
        await self._stack.aclose()

    def stop_being_ready(self) -> None:
        """The process ends soon: it serves on, and whoever balances is to ask others."""
        self.draining = True

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own. Raises InvalidRequest where every engine gives text, and none is."""
        if self._tokenizer is None:
            raise InvalidRequest("This model takes messages only.")
        return self._tokenizer

    def _load_model(self) -> Renderer:
        """Read the model's tokenizer, if there is one, and what renders its prompts."""
        settings = self.settings
        if settings.model.path is None:
            if settings.token_engines or not settings.text_engines:
                raise ConfigError("model.path is not set: the gateway needs the model's tokenizer")
            return NoRenderer()
        self._tokenizer = Tokenizer.load(settings.model.path)
        return make_renderer(settings.model.renderer, self._tokenizer, settings.model.modalities)

    async def _open(self) -> None:
        settings, stack = self.settings, self._stack
        self.traces = Traces.configured(settings.tracing, "gateway")
        if self.traces is not None:
            stack.push_async_callback(self.traces.close)
        self.redactor = Redactor.configured(settings.capture.redaction)
        renderer = await asyncio.to_thread(self._load_model)
        texts = settings.text_engines
        self.media = MediaRules(
            kinds=frozenset(renderer.marks).union(*(engine.modalities for engine in texts)),
            fetched=(bool(renderer.marks) and settings.model.fetch_media)
            or any(engine.fetch_media for engine in texts),
        )
        self.database = await Database.open(
            settings.database, settings.database_url, application="nextstate-gateway"
        )
        stack.push_async_callback(self.database.close)
        await self.database.check_revision()
        self.keys = KeyStore(self.database)
        self.turns = TurnStore(self.database, settings.session_awareness.cache_turns)
        awareness = self.awareness = Awareness(settings.session_awareness)
        self.rules = AwarenessFollower(
            awareness,
            self.database,
            file=config_file(),
            read=lambda: load(Settings).session_awareness,
        )
        self._task(self.rules.run())
        self._task(close_idle_sessions(self.turns, awareness, settings.gateway.idle_check_s))
        self._task(keep_retention(self.database, settings.retention))
        self.pauses = PauseFollower(self.database)
        await self.pauses.refresh()
        self._task(self.pauses.run())
        self.tenants = TenantStore(self.database)
        self.admin = AdminReads(self.database)
        self.conversations = ConversationStore(self.database)
        self.writer = await TurnWriter.open(self.database)
        stack.push_async_callback(self.writer.close)
        self._task(self.writer.drop_erased())
        await self.database.listen(ERASED, self._forget)
        base = settings.model.path
        policies = PolicyStore(self.database, None if base is None else str(base))
        self.pool = EnginePool(
            [SglangEngine(engine) for engine in settings.token_engines],
            policies.served,
            movers=EngineMovers(self.database),
            retries=max((engine.retries for engine in settings.token_engines), default=0),
            texts=TextPool(
                [OpenAIEngine(engine) for engine in settings.text_engines],
                retries=max((engine.retries for engine in settings.text_engines), default=0),
            ),
        )
        stack.push_async_callback(self.pool.close)
        self.drains = DrainFollower(
            self.database, changed=lambda: self.pool.drain(self.drains.current.engines)
        )
        await self.drains.refresh()
        self._task(self.drains.run())
        self._task(self.pool.follow())
        await stack.enter_async_context(
            Heartbeat(self.database, "gateway", self._report, worker_id=self.worker_id)
        )
        follower = await self._follow_admission()

        def changed(_: str) -> None:
            self.pool.poke()
            follower.poke()

        await self.database.listen(POLICY_CHANNEL, changed)
        self.pipeline = Pipeline(
            settings=settings,
            pool=self.pool,
            turns=self.turns,
            writer=self.writer,
            tokenizer=self._tokenizer,
            renderer=renderer,
            awareness=awareness,
            metrics=self.metrics,
            admitter=self.admitter,
            redactor=self.redactor,
            traces=self.traces,
        )
        stack.push_async_callback(self.pipeline.close)

    async def _follow_admission(self) -> Follower:
        """Know what waits before the first request comes, and keep on knowing."""
        settings = self.settings.freshness
        store = AdmissionStore(self.database, max_lag=settings.max_lag, idle_s=settings.idle_s)
        follower = Follower(self.admitter, store, self.worker_id, settings.refresh_s)
        self.admitter.want = follower.poke
        await follower.refresh()
        self._task(follower.run())
        return follower

    def _report(self) -> dict[str, Any]:
        """What the trainer needs to know before it unloads a version."""
        return {
            "in_flight": self.pool.in_flight(),
            "engines": self.pool.describe(),
            "drains": self.drains.current.followed(),
            "spooling": self.writer.spooling,
            "running": {one.hex: count for one, count in self.admitter.running().items()},
        }

    def _forget(self, _: str) -> None:
        """Something was erased: neither memory nor what was set aside on disk keeps it."""
        self.turns.forget()
        if self._tokenizer is not None:
            self._tokenizer.forget()
        task = asyncio.create_task(self.writer.drop_erased())
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    def _task(self, work: Any) -> None:
        task = asyncio.ensure_future(work)

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(cancel)
