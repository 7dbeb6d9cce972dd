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
        self._waits_since = self._silence_s = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._parts: list[bytes] = []
        self._held = 0
        #: Takes what arrives at that very moment, with no task between.
        self._take: Callable[[bytes], bool] | None = None
        #: Of the reply, once its head has come.
        self.status: int | None = None
        self._lost: str | None = None
        self._complete = self._discards = self._keeps = False

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, head: bytes, body: bytes, silence_s: float) -> None:
        """Send a request. The reply before it has been read to its end.

        `silence_s` bounds every wait for something of the reply.
        """
        assert self._transport is not None
        if self._parser is None:
            # For all replies of the connection, which end one by one.
            self._parser = httptools.HttpResponseParser(self)
        self._parts, self._held, self._silence_s = [], 0, silence_s
        self.status = self._lost = None
        self._complete = self._discards = self._keeps = False
        self._transport.writelines((head, body))

    def more(self) -> asyncio.Future[None]:
        """What to wait for until something has happened, as `part` does.

        Raises EngineUnavailable, and waiting for it EngineTimeout.
        """
        if self._lost is not None:
            raise EngineUnavailable(f"cannot be reached: {self._lost}", engine=self._engine)
        self._waiter = self._loop.create_future()
        self._waits_since = self._loop.time()
        if self._watch is None:
            self._watch = self._loop.call_later(self._silence_s, self._look)
        return self._waiter

    async def part(self) -> bytes:
        """What has arrived of the body; empty at its end. Raises as `more` does."""
        while not self._parts:
            if self._complete:
                return b""
            await self.more()
        return self.taken()

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """Give each part of the body to `take` as it arrives, until that says False.

        Whether it did: else the body is at its end. Waking a task for each part would cost more
        than what is done with it. Raises as `more` does, and what `take` raises.
        """
        while True:
            if self._parts and not take(self.taken()):
                return True
            if self._complete and not self._parts:
                return False
            self._take = take
            try:
                await self.more()
            finally:
                poured, self._take = self._take is None, None
            if poured:
                return True

    def taken(self) -> bytes:
        """What has arrived and was not taken yet, without waiting."""
        if not self._parts:
            return b""
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

    def _look(self) -> None:
        """End a wait that has taken too long: one timer for many waits, which cost less."""
        self._watch = None
        if self._waiter is None or self._waiter.done():
            return
        left = self._waits_since + self._silence_s - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look)
        else:
            silence = f"no answer in time: silent for {self._silence_s} s"
            self._waiter.set_exception(EngineTimeout(silence, engine=self._engine))

    def _happened(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _hand_over(self, take: Callable[[bytes], bool]) -> None:
        """Pour, and wake who waits only where there is something to do about it."""
        # How long it has been silent is counted from here.
        self._waits_since = self._loop.time()
        try:
            goes_on = take(self.taken())
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
        if self._keeps and self._transport is not None:
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
        if self.status is not None and not self._keeps and exc is None:
            # Without a length a reply ends with its connection.
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

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        # It is kept only where the head also says where the reply ends.
        self.status = self._parser.get_status_code()
        self._keeps = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if self._discards:
            return
        self._parts.append(body)
        held, self._held = self._held, self._held + len(body)
        if held <= _MOST_HELD < self._held and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self._complete = True
        if self._discards:
            self._rest()
