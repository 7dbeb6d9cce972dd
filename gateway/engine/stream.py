"""One generation, whichever engine serves it in the end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import TracebackType
from typing import Protocol, Self
from uuid import UUID

from msgspec.structs import replace

from gateway.engine.base import Chunks, Engine, Take
from gateway.errors import EngineError, EngineOverloaded, EngineTimeout, EngineUnavailable
from gateway.records import Chunk, Generation, PolicyRef
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: Makes the request for the version that will serve it.
Request = Callable[[PolicyRef], Generation]


class Source(Protocol):
    """Where engines come from: the pool."""

    async def next_engine(
        self,
        lineage_id: UUID,
        session_key: str,
        failed: Collection[str] = (),
        last: EngineError | None = None,
    ) -> tuple[Engine, PolicyRef]:
        """The engine for the next attempt. Raises `last` where nothing is left to try."""
        ...

    def hold(self, policy: PolicyRef, engine: str) -> Callable[[], None]: ...

    def doubt(self, engine: Engine) -> None: ...


class Stream:
    """Iterate over its chunks; close it in every case. Closing early aborts the generation.

    Until the first chunk another engine is tried when one fails, or the same one where there is
    no other and it could not be reached.
    """

    #: What serves it, known once it has `started`.
    engine: Engine
    policy: PolicyRef

    def __init__(
        self, source: Source, request: Request, lineage_id: UUID, session_key: str, *, retries: int
    ) -> None:
        self._source = source
        self._request = request
        self._lineage_id, self._session_key = lineage_id, session_key
        self._retries = retries
        self._chunks: Chunks | None = None
        self._release: Callable[[], None] | None = None
        self._first: Chunk | None = None
        #: Whether the first chunk has come.
        self.started = False
        self._over = False

    async def start(self) -> None:
        """Wait for the first chunk; iterating does so by itself.

        Raises the last engine's error; EngineRejected without another attempt.
        """
        failed: set[str] = set()
        last: EngineError | None = None
        for attempt in range(self._retries + 1):
            engine, policy = await self._source.next_engine(
                self._lineage_id, self._session_key, failed, last
            )
            generation = self._request(policy)
            if attempt:
                # The engine may still know the id of the attempt that failed.
                generation = replace(generation, rid=f"{generation.rid}-{attempt}")
            self._release = self._source.hold(policy, engine.name)
            self._chunks = engine.generate(generation)
            try:
                self._first = await self._chunks.asend(None)
            except (EngineUnavailable, EngineOverloaded, EngineTimeout) as error:
                self._let_go()
                log.warning("attempt_failed", engine=engine.name, error=error.message)
                self._source.doubt(engine)
                failed.add(engine.name)
                last = error
            except BaseException:
                self._let_go()
                raise
            else:
                self.engine, self.policy, self.started = engine, policy, True
                return
        assert last is not None
        raise last

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        return await self.more(None)

    async def more(self, take: Take | None) -> Chunk:
        """The next chunk; of an engine that can, the next that `take` was not given.

        An empty one where it said that it takes no more for now. Raises as `start` does, and
        StopAsyncIteration after the last chunk.
        """
        if self._over:
            raise StopAsyncIteration
        if not self.started:
            await self.start()
        if self._first is not None:
            chunk, self._first = self._first, None
            return chunk
        assert self._chunks is not None
        return await self._chunks.asend(take)

    async def aclose(self) -> None:
        """Abort what still runs. Closing twice is no error."""
        self._over = True
        chunks, self._chunks = self._chunks, None
        try:
            if chunks is not None:
                await chunks.aclose()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """What was begun at an engine is over."""
        self._chunks = None
        release, self._release = self._release, None
        if release is not None:
            release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
