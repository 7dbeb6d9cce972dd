"""Which text engine answers a request, and what happens when one fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from typing import Any, Self

from gateway.engine.base import TextEngine
from gateway.engine.health import Health
from gateway.engine.rendezvous import any_key, weight
from gateway.errors import EngineError, EngineOverloaded, EngineTimeout, EngineUnavailable
from gateway.records import Media, TextChunk, TextGeneration
from gateway.telemetry import get_logger

log = get_logger(__name__)


class TextPool:
    """`follow` runs beside the server and looks every `poll_s`: such servers may charge for it."""

    def __init__(
        self, engines: Sequence[TextEngine], *, retries: int = 2, poll_s: float = 15.0
    ) -> None:
        self._engines = {engine.name: engine for engine in engines}
        self._health = {engine.name: Health(engine) for engine in engines}
        #: Replies that run, by the names of engines.
        self._in_flight: Counter[str] = Counter()
        self._retries = retries
        self._poll_s = poll_s

    @property
    def ready(self) -> bool:
        """Whether some engine answers that is not drained."""
        ready = False
        for one in self._health.values():
            ready = ready or (one.healthy and not one.draining)
        return ready

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "name": health.name,
                "healthy": health.healthy,
                "draining": health.draining,
                "error": health.error,
                "model": health.status.model if health.status else None,
                "running": None,
                "queued": None,
                "serving": {},
                "failing": {},
                "requests": self._in_flight[health.name],
            }
            for health in self._health.values()
        ]

    def drain(self, engines: Collection[str]) -> None:
        """Send no new request to engines of these names, and again to all others."""
        for health in self._health.values():
            health.drain(health.name in engines)

    def hold(self, engine: str) -> None:
        """Count a reply that begins at an engine, until it is released."""
        self._in_flight[engine] += 1

    def release(self, engine: str) -> None:
        self._in_flight[engine] -= 1

    async def follow(self) -> None:
        """Look at every engine, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for health in self._health.values():
                group.create_task(self._follow(health))

    async def _follow(self, health: Health) -> None:
        while True:
            health.wake.clear()
            await health.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await health.wake.wait()

    def takes(self, media: Sequence[Media]) -> bool:
        """Whether some engine can be shown all of these."""
        return any(engine.takes(media) for engine in self._engines.values())

    def choose(
        self, session_key: str, exclude: Collection[str] = (), media: Sequence[Media] = ()
    ) -> TextEngine:
        """An engine that answers and can be shown `media`, the same for a session.

        Raises EngineUnavailable.
        """
        names = [
            name
            for name, health in self._health.items()
            if health.healthy
            and not health.draining
            and name not in exclude
            and self._engines[name].takes(media)
        ]
        if not names:
            raise EngineUnavailable("no engine can serve this now", engine="pool")
        key = session_key or any_key()
        return self._engines[max(names, key=lambda name: weight(name, key))]

    def doubt(self, engine: TextEngine) -> None:
        """A request failed there: look at it now, rather than at the next poll."""
        self._health[engine.name].wake.set()

    def generate(
        self, request: TextGeneration, session_key: str, media: Sequence[Media] = ()
    ) -> TextStream:
        return TextStream(self, request, session_key, retries=self._retries, media=media)

    async def close(self) -> None:
        """Close every engine's client. Cancel `follow` first."""
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))


class TextStream:
    """Iterate over its chunks; close it in every case. Closing early aborts the reply.

    Until the first chunk other engines are tried when one fails.
    """

    def __init__(
        self,
        pool: TextPool,
        request: TextGeneration,
        session_key: str,
        *,
        retries: int,
        media: Sequence[Media] = (),
    ) -> None:
        self._media = media
        self._pool = pool
        self._request = request
        self._session_key = session_key
        self._retries = retries
        self._engine: TextEngine | None = None
        self._chunks: AsyncGenerator[TextChunk, None] | None = None
        self._first: TextChunk | None = None
        self._held: str | None = None

    @property
    def started(self) -> bool:
        """Whether the first chunk has come."""
        return self._engine is not None

    @property
    def engine(self) -> TextEngine:
        assert self._engine is not None, "the stream has not started"
        return self._engine

    async def start(self) -> None:
        """Wait for the first chunk. Raises the last engine's error, EngineRejected at once."""
        failed: set[str] = set()
        last: EngineError | None = None
        for _ in range(self._retries + 1):
            try:
                engine = self._pool.choose(self._session_key, failed, self._media)
            except EngineUnavailable as error:
                raise last or error from None
            try:
                await self._attempt(engine)
            except (EngineUnavailable, EngineOverloaded, EngineTimeout) as error:
                log.warning("attempt_failed", engine=engine.name, error=error.message)
                self._pool.doubt(engine)
                failed.add(engine.name)
                last = error
            else:
                self._engine = engine
                return
        assert last is not None
        raise last

    async def _attempt(self, engine: TextEngine) -> None:
        self._held = engine.name
        self._pool.hold(engine.name)
        self._chunks = engine.generate(self._request)
        try:
            self._first = await anext(self._chunks)
        except BaseException:
            await self.aclose()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TextChunk:
        if self._first is not None:
            chunk, self._first = self._first, None
            return chunk
        if self._chunks is None:
            raise StopAsyncIteration
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """Abort what still runs. Closing twice is no error."""
        chunks, self._chunks = self._chunks, None
        held, self._held = self._held, None
        try:
            if chunks is not None:
                await chunks.aclose()
        finally:
            if held is not None:
                self._pool.release(held)
