"""The source of replies that come as text, without token ids."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

import msgspec

from gateway.engine.text_pool import TextStream
from gateway.errors import EngineRejected, InvalidRequest
from gateway.pipeline.events import Piece
from gateway.pipeline.one_by_one import OneByOne
from gateway.pipeline.turn import TEXT_ONLY, joined
from gateway.records import Delta, Finish, Reply, TextChunk, Usage


class TextSource:
    """Deltas as the engine gives them, put in order; ids of calls are made anew, to be unique."""

    version: int | None = None
    stopped_by: str | None = None
    watched = True

    def __init__(self, stream: TextStream, *, choice: int, call_prefix: str) -> None:
        self._stream = stream
        self._choice = choice
        self._call_prefix = call_prefix
        self._deltas: list[Delta] = []
        self._order = OneByOne()

    @property
    def started(self) -> bool:
        return self._stream.started

    @property
    def engine(self) -> str:
        return self._stream.engine.name

    async def start(self) -> None:
        """Raises EngineError, and InvalidRequest where the engine refuses the request itself."""
        try:
            await self._stream.start()
        except EngineRejected as error:
            raise InvalidRequest(error.message) from error

    async def pour(
        self, took: Callable[[Piece], bool], ready: Callable[[], Awaitable[None]]
    ) -> Finish | None:
        async for chunk in self._stream:
            piece, finish = self._read(chunk)
            if not took(piece):
                await ready()
            if finish is not None:
                return finish
        return None

    def _read(self, chunk: TextChunk) -> tuple[Piece, Finish | None]:
        deltas = self._order.take(self._own(delta) for delta in chunk.deltas)
        finish = None
        if chunk.finish is not None:
            deltas += self._order.finish()
            usage = chunk.finish.usage or Usage(prompt_tokens=0, completion_tokens=0)
            finish = Finish(
                reason=chunk.finish.reason,
                cached_tokens=usage.cached_tokens,
                usage=usage,
                detail=chunk.finish.detail or TEXT_ONLY,
            )
        self._deltas += deltas
        return Piece(choice=self._choice, deltas=tuple(deltas), ids=(), logprobs=()), finish

    def reply(self, sampled_ids: list[int]) -> Reply:  # noqa: ARG002 - there are none
        return joined(self._deltas)

    def deltas(self, sampled_ids: list[int], *, ended: bool) -> list[Delta]:  # noqa: ARG002 - see above
        return self._deltas

    def reasoning_tokens(self, sampled_ids: list[int]) -> int:  # noqa: ARG002 - the engine counts
        return 0

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _own(self, delta: Delta) -> Delta:
        if delta.call_id is None:
            return delta
        return msgspec.structs.replace(delta, call_id=f"{self._call_prefix}{secrets.token_hex(12)}")
