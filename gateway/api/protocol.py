"""uvicorn's HTTP/1.1, but that the head of a request is bounded in size and time, and heard out.

uvicorn bounds neither with httptools: one header could fill the memory, and a connection that
says nothing would stay. What a read brings is counted only until a head has ended, so that a
request that comes in one piece costs nothing. And where a server ends, uvicorn closes connections
whose request is on its way; here they are served once more.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.api.direct_cycle import DIRECT, NOBODY, DirectCycle
from gateway.telemetry import get_logger

log = get_logger(__name__)

#: Line and headers of a request.
MAX_HEAD_BYTES = 64 * 1024
#: From the connection, or the first byte of a later request, to the end of the head.
HEAD_TIMEOUT_S = 30.0
#: How long the request of a connection that was just made is waited for, where the server ends.
LAST_HEAD_S = 5.0

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/json\r\ncontent-length: 73\r\nconnection: close\r\n\r\n"
    b'{"error": {"message": "The headers are too large.", "type": "too_large"}}'
)


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection whose head is too large or too slow; the first is told why.

    What is asked of the app's `straight` endpoints, by method and target, goes to them at once.
    """

    #: The cycle of the request that is being read, where that goes straight.
    _direct: DirectCycle | None = None
    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0
    _ended = False
    _last = False
    #: Since when no request is there.
    _idle_at: float | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._straight = getattr(self.app, "straight", {})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        super().connection_lost(exc)
        if isinstance(self.cycle, DirectCycle):
            self.cycle.left()

    def data_received(self, data: bytes) -> None:
        self._ended = False
        super().data_received(data)
        # What ended a request was its body, which has a bound of its own.
        if not self._in_head or self._ended or self.transport.is_closing():
            return
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._late)
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            log.info("refused", status=431, error="HeadTooLarge", why="the headers are too large")
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if self._timer is not None:
            self._arrived()
        parser = self.parser
        endpoint = self._straight.get((parser.get_method(), self.url))
        if endpoint is None or parser.get_http_version() != "1.1" or parser.should_upgrade():
            self._direct = None
            super().on_headers_complete()
        else:
            self._direct = self._go_straight(endpoint)
        if self._last and self.cycle is not None:
            self.cycle.keep_alive = False

    def _go_straight(self, endpoint: Any) -> DirectCycle:
        """As uvicorn does, without taking the target apart, and with a way past ASGI."""
        before = self.cycle
        scope: Any = self.scope
        self.cycle = cycle = DirectCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=NOBODY,
            expect_100_continue=self.expect_100_continue,
            keep_alive=self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope |= {"method": "POST", "path": self.url.decode("ascii"), "raw_path": self.url}
        scope |= {"query_string": b"", "path_params": {}, "extensions": {DIRECT: cycle}}
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, endpoint)
        else:
            # Pipelined: it waits for those before it.
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, endpoint))
        return cycle

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if not isinstance(cycle, DirectCycle):
            super()._start_asgi_task(cycle, app)
            return
        cycle.serving = task = self.loop.create_task(app(cycle.scope, cycle.receive, cycle.send))
        cycle.tasks = self.tasks
        self.tasks.add(task)
        task.add_done_callback(cycle.ended)

    def on_body(self, body: bytes) -> None:
        cycle = self._direct
        if cycle is None:
            super().on_body(body)
        elif not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            if cycle.message_event is not NOBODY:
                cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._in_head = self._ended = True
        cycle = self._direct
        if cycle is None:
            super().on_message_complete()
        elif not cycle.response_complete:
            cycle.more_body = False
            if cycle.message_event is not NOBODY:
                cycle.message_event.set()

    def on_response_complete(self) -> None:
        """As uvicorn does, but that one timer looks on, where it sets a new one at each answer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._idle_for(self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_at = None

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_at is None:
            return
        rest = self._idle_at + self.timeout_keep_alive - self.loop.time()
        if rest > 0:
            self._idle_for(rest)
        else:
            super().timeout_keep_alive_handler()

    def _idle_for(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def shutdown(self) -> None:
        """The server ends: so does the connection, with the request that is in hand or coming."""
        if self._in_head and (self.cycle is None or self._head_bytes):
            self._arrived()
            self._last = True
            self._timer = self.loop.call_later(LAST_HEAD_S, self._late)
        else:
            super().shutdown()

    def _arrived(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self.transport.close()
