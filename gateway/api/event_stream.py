"""The body of a streamed reply as raw ASGI, never silent for long."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from gateway.api.direct_cycle import Headers
from gateway.api.exchange import Exchange
from gateway.wire.sse import COMMENT

_SSE = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Reverse proxies would otherwise collect the stream before they pass it on.
    (b"x-accel-buffering", b"no"),
)


class EventStream:
    """The body of a streamed reply; comment lines fill silences longer than `silence_s`.

    Proxies cut streams that say nothing. If the first token takes that long, the response begins
    without it, and what fails later is an event of the stream.
    """

    def __init__(self, exchange: Exchange, silence_s: float) -> None:
        self._exchange = exchange
        self._direct = exchange.direct
        #: What waits for `flush`, where the server is told by ASGI alone.
        self._unsent = b""
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        #: When something was written last. The timer looks, and is not set anew by each token.
        self._written = self._loop.time()
        self._timer = self._loop.call_later(silence_s, self._look)
        self._comment: asyncio.Task[None] | None = None

    async def open(self, headers: Headers) -> None:
        if not self._exchange.begun:
            await self._exchange.begin(HTTPStatus.OK, (*_SSE, *headers))

    def write(self, frames: bytes) -> bool:
        """Send frames, now or with `flush`; whether that need not be waited for."""
        if not frames:
            return True
        self._written = self._loop.time()
        if self._direct is None:
            self._unsent += frames
            return False
        return self._direct.write(frames)

    async def flush(self) -> None:
        """Wait until more can be taken."""
        if self._direct is not None:
            await self._direct.drain()
        elif self._unsent:
            unsent, self._unsent = self._unsent, b""
            await self._exchange.write(unsent)

    async def end(self, frames: bytes) -> None:
        self.close()
        await self.flush()
        await self._exchange.end(frames)

    def close(self) -> None:
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    def _look(self) -> None:
        """Say something if nothing was said, and look again when it may be time to."""
        rest = self._written + self._silence_s - self._loop.time()
        if rest <= 0:
            if self._comment is None or self._comment.done():
                self._comment = self._loop.create_task(self._say_nothing())
            rest = self._silence_s
        self._timer = self._loop.call_later(rest, self._look)

    async def _say_nothing(self) -> None:
        await self.open(())
        self.write(COMMENT)
        await self.flush()
