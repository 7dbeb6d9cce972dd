"""The chunks of one reply, read off its connection."""

from __future__ import annotations

from gateway.engine.base import Take
from gateway.engine.channels import Exchange
from gateway.engine.chunks import ChunkReader
from gateway.engine.codec import EventSplitter
from gateway.errors import EngineError
from gateway.records import Chunk, PolicyRef


class ReplyReader:
    """Events to chunks, waited for one by one or handed over as they arrive."""

    def __init__(self, reply: Exchange, policy: PolicyRef, engine: str) -> None:
        self._reply = reply
        self._reader = ChunkReader(policy, engine)
        self._splitter = EventSplitter()
        self._broken: EngineError | None = None
        self._kept: Chunk | None = None

    async def next(self, take: Take | None) -> Chunk:
        """The next chunk; with `take`, the next that it was not given (see `Engine.generate`).

        What came before an event that is an error is handed on first. Raises EngineError.
        """
        if self._broken is None:
            chunk = await (self._waited() if take is None else self._poured(take))
            if chunk is not None:
                return chunk
        raise self._broken or self._reader.ended()

    async def _waited(self) -> Chunk | None:
        while part := await self._reply.part():
            chunk = self._read(part)
            if chunk is not None or self._broken is not None:
                return chunk
        return None

    async def _poured(self, take: Take) -> Chunk | None:
        def pour(part: bytes) -> bool:
            chunk = self._read(part)
            if chunk is None:
                return self._broken is None
            if self._broken is not None or chunk.finish is not None:
                self._kept = chunk
                return False
            return take(chunk)

        held = await self._reply.pour(pour)
        if self._kept is None and self._broken is None and held:
            # It has them all, and wants no more for now.
            return Chunk()
        return self._kept

    def _read(self, part: bytes) -> Chunk | None:
        self._broken = self._reader.fed(self._splitter.feed(part))
        return self._reader.take()
