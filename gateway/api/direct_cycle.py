"""uvicorn's request and response, with a way past ASGI for endpoints that answer at once.

An ASGI message is a dict, a coroutine and a write of its own; for a token that is half of what it
costs, and a whole answer is two of them where the kernel could be asked once. Endpoints find this
in the scope's extensions under `DIRECT`, and do without where some other server runs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

#: The name of the ASGI extension.
DIRECT = "nextstate.direct"
#: The event of a cycle that nobody has waited for, as of nearly all: it wakes no one.
NOBODY = asyncio.Event()

Headers = Iterable[tuple[bytes, bytes]]

_FAILED = b"Internal Server Error"
_FAILED_HEADERS = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"%d" % len(_FAILED)),
    (b"connection", b"close"),
)


class DirectCycle(RequestResponseCycle):
    """Either `answer`, or `start`, `write` and `end`; names of headers are in lower case.

    A client that has gone is no error, as in ASGI: what is written is thrown away. `on_left` is
    told of it at that moment. The endpoint is all of the task `serving`, whose end is told to
    `ended`: the frame of `run_asgi` around it would be gone through at each of its steps.
    """

    _head = b""
    _taken = False
    on_left: Callable[[], None] | None = None
    serving: asyncio.Task[None] | None = None
    #: The server's, of which `serving` is one while it runs.
    tasks: set[asyncio.Task[None]]

    @property
    def behind(self) -> bool:
        """Whether the client reads more slowly than it is written to: `drain` before more."""
        return self.flow.write_paused and not self.disconnected

    async def drain(self) -> None:
        if self.behind:
            await self.flow.drain()

    def whole_body(self) -> bytes | None:
        """The body, where all of it is there, as it nearly always is; else ASGI has to wait."""
        if self.more_body or self.disconnected:
            return None
        body, self.body, self._taken = bytes(self.body), bytearray(), True
        # What wakes `receive` from now on is that the client has gone.
        if self.message_event is not NOBODY:
            self.message_event.clear()
        if self.flow.read_paused:
            self.flow.resume_reading()
        return body

    async def receive(self) -> Any:
        """As in ASGI; there is an event only from here on."""
        if self.message_event is NOBODY:
            self.message_event = asyncio.Event()
            if self.body or not (self.more_body or self._taken):
                self.message_event.set()
        return await super().receive()

    def left(self) -> None:
        """The connection is lost."""
        if self.on_left is not None and self.disconnected:
            self.on_left()

    def ended(self, task: asyncio.Task[None]) -> None:
        """Where the endpoint failed, its client is told, or what was begun is cut off."""
        self.tasks.discard(task)
        cancelled = task.cancelled()
        error = None if cancelled else task.exception()
        if cancelled or error is not None or not (self.response_complete or self.disconnected):
            self.logger.error("An endpoint failed to answer", exc_info=error)
            if self.response_started:
                self.transport.close()
            else:
                self.answer(500, _FAILED_HEADERS, _FAILED)
        # Each of these refers to what refers to this.
        self.serving, self.on_response = None, _nothing

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response; `headers` have its length."""
        if not self.disconnected:
            self.transport.write(self._begun(status, headers) + b"\r\n" + body)
            self._completed()

    def start(self, status: int, headers: Headers) -> None:
        """Begin a response of unknown length; its head goes out with what is written first."""
        self._head = self._begun(status, headers) + b"transfer-encoding: chunked\r\n\r\n"

    def write(self, data: bytes) -> bool:
        """Send a part, which is not empty; whether the client keeps up."""
        if self.disconnected:
            return True
        part = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            part, self._head = self._head + part, b""
        self.transport.write(part)
        return not self.flow.write_paused

    def end(self, data: bytes) -> None:
        """Send the last part."""
        if not self.disconnected:
            head, self._head = self._head, b""
            last = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            self.transport.write(b"%b%b0\r\n\r\n" % (head, last))
            self._completed()

    def _begun(self, status: int, headers: Headers) -> bytes:
        """Status line and headers, without the empty line that ends them."""
        self.response_started, self.waiting_for_100_continue = True, False
        lines, parts = 1, [STATUS_LINE[status]]
        closes = False
        for name, value in (*self.default_headers, *headers):
            if name == b"connection":
                closes = closes or b"close" in value.lower()
            lines += 1
            parts += name, b": ", value, b"\r\n"
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines += 1
            parts.append(b"connection: close\r\n")
        head = b"".join(parts)
        if not head.count(b"\r") == head.count(b"\n") == lines:
            raise RuntimeError("a header has a line break")
        return head

    def _completed(self) -> None:
        self.response_complete = True
        if self.message_event is not NOBODY:
            self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


def _nothing() -> None:
    pass


def direct_of(scope: Mapping[str, Any]) -> DirectCycle | None:
    """The way past ASGI, where the server has one."""
    extensions = scope.get("extensions")
    found = extensions.get(DIRECT) if extensions else None
    return found if isinstance(found, DirectCycle) else None
