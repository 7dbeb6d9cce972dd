"""One generation of an SGLang server, from the request to its last chunk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol, Self

from gateway.engine.base import Take
from gateway.engine.channel import Channel
from gateway.engine.chunks import ChunkReader
from gateway.engine.codec import EventSplitter
from gateway.errors import EngineRejected, EngineTimeout
from gateway.records import Chunk, Generation


class Server(Protocol):
    """What a reply asks of the server that samples it."""

    @property
    def name(self) -> str: ...

    def begin(self, request: Generation) -> Awaitable[Channel]:
        """Check a request and send it. Raises EngineError."""
        ...

    def refused(self, error: EngineRejected) -> None:
        """It refused a request. Raises EngineUnavailable where another may take it."""
        ...

    async def held(self) -> bool:
        """Whether it is paused."""
        ...

    def abort(self, rid: str) -> None:
        """Have it stop sampling a request, without waiting for it."""
        ...


class Reply:
    """Chunks as they are sampled: `gateway.engine.base.Chunks`.

    An object rather than an async generator, in each of which the event loop puts a hook.
    """

    def __init__(self, server: Server, request: Generation) -> None:
        self._server = server
        self._request = request
        self._channel: Channel | None = None
        self._reader = ChunkReader(request.policy, server.name)
        self._splitter = EventSplitter()
        self._last: Chunk | None = None
        self._over = False

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Chunk]:
        return self.asend(None)

    async def asend(self, take: Take | None) -> Chunk:
        """The next chunk; with `take`, the next that it was not given (see `Engine.generate`)."""
        if self._over:
            raise StopAsyncIteration
        try:
            channel = self._channel
            if channel is None:
                channel = self._channel = await self._server.begin(self._request)
            chunk = await self._next(channel, take)
        except EngineRejected as error:
            self._end(aborts=False)
            self._server.refused(error)
            raise
        except asyncio.CancelledError:
            # Also where the server has read the request and not said anything yet.
            self._end(aborts=True)
            raise
        except BaseException:
            self._end(aborts=self._channel is not None)
            raise
        if chunk.finish is not None:
            self._over = True
            # The rest is read beside, and the connection kept.
            channel.release()
        return chunk

    async def aclose(self) -> None:
        """Abort what still runs. Closing twice is no error."""
        if not self._over:
            self._end(aborts=self._channel is not None)

    def _end(self, *, aborts: bool) -> None:
        self._over = True
        if self._channel is not None:
            self._channel.abort()
        if aborts:
            self._server.abort(self._request.rid)

    async def _next(self, channel: Channel, take: Take | None) -> Chunk:
        """What came before an event that is an error is handed on first."""
        chunk: Chunk | None = None
        more = True
        while chunk is None and more and self._reader.broken is None:
            try:
                if take is not None:
                    chunk, more = await self._poured(channel, take), False
                elif part := channel.taken() or await channel.part():
                    chunk = self._reader.fed(self._splitter.feed(part))
                else:
                    more = False
            except EngineTimeout:
                # While whole weights are read it says nothing for as long as that takes.
                if not await self._server.held():
                    raise
        if chunk is None:
            raise self._reader.broken or self._reader.ended()
        return chunk

    async def _poured(self, channel: Channel, take: Take) -> Chunk | None:
        """The next chunk that `take` was not given, None behind the last."""

        def pour(part: bytes) -> bool:
            chunk = self._reader.fed(self._splitter.feed(part))
            if chunk is None:
                return self._reader.broken is None
            if self._reader.broken is not None or chunk.finish is not None:
                self._last = chunk
                return False
            return take(chunk)

        held = await channel.pour(pour)
        if self._last is None and self._reader.broken is None and held:
            # It has them all, and wants no more for now.
            return Chunk()
        return self._last
