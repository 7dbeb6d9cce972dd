"""What the routes use, opened once a process and closed with it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self

from gateway.api.limits import Limiter
from gateway.config import Settings
from gateway.engine.openai import OpenAIEngine
from gateway.engine.pool import EnginePool
from gateway.engine.sglang import SglangEngine
from gateway.engine.text_pool import TextPool
from gateway.errors import ConfigError
from gateway.pipeline import Pipeline
from gateway.store.admin import AdminReads
from gateway.store.conversations import ConversationStore
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from gateway.store.turns import TurnStore
from gateway.store.workers import Heartbeat
from gateway.store.writer import TurnWriter
from gateway.tokens.choice import make_renderer
from gateway.tokens.tokenizer import Tokenizer

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
    pipeline: Pipeline
    admin: AdminReads
    conversations: ConversationStore
    tokenizer: Tokenizer
    limiter: Limiter

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limiter = Limiter(settings.limits)
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

    async def _open(self) -> None:
        settings, stack = self.settings, self._stack
        if settings.model.path is None:
            raise ConfigError("model.path is not set: the gateway needs the model's tokenizer")
        tokenizer = await asyncio.to_thread(Tokenizer.load, settings.model.path)
        self.tokenizer = tokenizer
        renderer = await asyncio.to_thread(make_renderer, settings.model.renderer, tokenizer)
        self.database = await Database.open(
            settings.database, settings.database_url, application="nextstate-gateway"
        )
        stack.push_async_callback(self.database.close)
        await self.database.check_revision()
        self.keys = KeyStore(self.database)
        self.turns = TurnStore(self.database, settings.session_awareness.cache_turns)
        self.admin = AdminReads(self.database)
        self.conversations = ConversationStore(self.database)
        self.writer = await TurnWriter.open(self.database)
        stack.push_async_callback(self.writer.close)
        policies = PolicyStore(self.database)
        self.pool = EnginePool(
            [SglangEngine(engine) for engine in settings.token_engines],
            policies.live,
            retries=max((engine.retries for engine in settings.token_engines), default=0),
            texts=TextPool(
                [OpenAIEngine(engine) for engine in settings.text_engines],
                retries=max((engine.retries for engine in settings.text_engines), default=0),
            ),
        )
        stack.push_async_callback(self.pool.close)
        self._task(self.pool.follow())
        await self.database.listen(POLICY_CHANNEL, lambda _: self.pool.poke())
        await stack.enter_async_context(Heartbeat(self.database, "gateway", self._report))
        self.pipeline = Pipeline(
            settings=settings,
            pool=self.pool,
            turns=self.turns,
            writer=self.writer,
            tokenizer=tokenizer,
            renderer=renderer,
        )
        stack.push_async_callback(self.pipeline.close)

    def _report(self) -> dict[str, Any]:
        """What the trainer needs to know before it unloads a version."""
        return {
            "in_flight": self.pool.in_flight(),
            "engines": self.pool.describe(),
            "spooling": self.writer.spooling,
        }

    def _task(self, work: Any) -> None:
        task = asyncio.ensure_future(work)

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(cancel)
