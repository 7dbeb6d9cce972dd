"""One kept connection to an inference server: HTTP/1.1, one POST after another.

The parser is httptools'. A general client costs ten times as much a request, and more a token
than all else that is done for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from gateway.errors import EngineTimeout, EngineUnavailable

#: What may have arrived and not been taken before the server is held back.
_MOST_HELD = 1 << 20
#: How long the end of a finished reply may take before its connection is given up.
_DRAIN_S = 1.0


class Channel(asyncio.Protocol):
    """A connection and the reply that is under way on it.

    `idle` is told once a reply has been read to its end and the connection can serve another.
    """

    def __init__(self, engine: str, idle: Callable[[Channel], None]) -> None:
        self._engine = engine
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._waits_since = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._parts: list[bytes] = []
        self._held = 0
        #: Takes what arrives at that very moment, with no task between.
        self._take: Callable[[bytes], bool] | None = None
        self._status = 0
        self._lost: str | None = None
        self._headed = self._delimited = self._complete = False
        self._discards = self._keeps = False

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, head: bytes, body: bytes) -> None:
        """Send a request. The reply before it has been read to its end."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._parts, self._held, self._status, self._lost = [], 0, 0, None
        self._headed = self._delimited = self._complete = False
        self._discards = self._keeps = False
        self._transport.writelines((head, body))

    async def status(self, silence_s: float) -> int:
        """The status of the reply. Raises EngineUnavailable or EngineTimeout."""
        while not self._headed:
            await self._more(silence_s)
        return self._status

    async def part(self, silence_s: float) -> bytes:
        """What has arrived of the body; empty at its end. Raises as `status` does."""
        while not self._parts:
            if self._complete:
                return b""
            await self._more(silence_s)
        return self._taken()

    async def pour(self, take: Callable[[bytes], bool], silence_s: float) -> bool:
        """Give each part of the body to `take` as it arrives, until that says False.

        Whether it did: else the body is at its end. Waking a task for each part would cost more
        than what is done with it. Raises as `status` does, and what `take` raises.
        """
        while True:
            if self._parts and not take(self._taken()):
                return True
            if self._complete and not self._parts:
                return False
            self._take = take
            try:
                await self._more(silence_s)
            finally:
                poured, self._take = self._take is None, None
            if poured:
                return True

    def _taken(self) -> bytes:
        """What has arrived and was not taken yet."""
        parts, self._parts = self._parts, []
        if self._held > _MOST_HELD and self._transport is not None:
            self._transport.resume_reading()
        self._held = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Be done with a reply whose rest, if there is any, says nothing more."""
        if self._complete:
            self._rest()
        elif self.alive:
            self._discards = True
            if self._held > _MOST_HELD and self._transport is not None:
                self._transport.resume_reading()
            self._parts, self._held = [], 0
            self._deadline = self._loop.call_later(_DRAIN_S, self.abort)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _more(self, silence_s: float) -> asyncio.Future[None]:
        """What to wait for until something has happened."""
        if self._lost is not None or not self.alive:
            raise EngineUnavailable(f"cannot be reached: {self._lost}", engine=self._engine)
        self._waiter = self._loop.create_future()
        self._waits_since = self._loop.time()
        if self._watch is None:
            self._watch = self._loop.call_later(silence_s, self._look, silence_s)
        return self._waiter

    def _look(self, silence_s: float) -> None:
        """End a wait that has taken too long: one timer for many waits, which cost less."""
        self._watch = None
        if self._waiter is None or self._waiter.done():
            return
        left = self._waits_since + silence_s - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look, silence_s)
        else:
            self._waiter.set_exception(
                EngineTimeout(f"no answer in time: silent for {silence_s} s", engine=self._engine)
            )

    def _happened(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _hand_over(self, take: Callable[[bytes], bool]) -> None:
        """Pour, and wake who waits only where there is something to do about it."""
        # How long it has been silent is counted from here.
        self._waits_since = self._loop.time()
        try:
            goes_on = take(self._taken())
        except BaseException as error:  # noqa: BLE001 - it is theirs who pour
            self._take = None
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)
            return
        if not goes_on:
            self._take = None
        if not goes_on or self._complete:
            self._happened()

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self.alive and self._keeps:
            self._idle(self)
        else:
            self.abort()

    # What the transport and the parser call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of it.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for timer in (self._watch, self._deadline):
            if timer is not None:
                timer.cancel()
        if self._headed and not self._delimited and exc is None:
            self._complete = True
        self._lost = str(exc or "the server closed the connection")
        self._happened()

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._complete:
            # Nothing was asked for.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost = f"the reply is not HTTP: {error}"
            self.abort()
        if self._take is not None and self._parts:
            self._hand_over(self._take)
        elif not self._discards:
            self._happened()

    def on_message_complete(self) -> None:
        assert self._parser is not None
        # The parser knows at this moment only.
        self._complete, self._keeps = True, self._parser.should_keep_alive()
        if self._discards:
            self._rest()

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 - the parser gives it
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._delimited = True

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._headed, self._status = True, self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._discards:
            return
        self._parts.append(body)
        held, self._held = self._held, self._held + len(body)
        if held <= _MOST_HELD < self._held and self._transport is not None:
            self._transport.pause_reading()
