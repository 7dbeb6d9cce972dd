"""One HTTP exchange as raw ASGI."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from starlette.types import Message, Receive, Send

from gateway.api.content_encoding import decoded
from gateway.api.direct_cycle import DirectCycle, Headers
from gateway.errors import BodyTooLarge, RequestTimeout

_JSON = (b"content-type", b"application/json")
#: What may be written into headers and logs as it is.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


#: Compressed bodies up to here are unpacked on the event loop, larger ones in a thread.
_FEW_PACKED = 1 << 13
#: Of a length that is still read as a number.
_DIGITS = 18
#: How long what is left of a refused body is read, so that its client sees the refusal.
_DRAIN_S = 2.0


class ClientLeft(Exception):
    """The client closed the connection before its reply ended."""


@dataclass(slots=True)
class Exchange:
    """One HTTP exchange: what was asked, and the two ends of the connection.

    `direct` is the way past the two, where there is one. `more_headers` go out with whatever is
    answered. The id that the client gave its request is
    given back, if it is a plain word; else it is `request_id`, which is always the log's. `unread`
    says that more of the body may come; `status` is what was answered.
    """

    headers: Mapping[str, str]
    receive: Receive
    send: Send
    request_id: UUID
    client_request_id: str | None = None
    direct: DirectCycle | None = None
    begun: bool = False
    status: int | None = None
    unread: bool = True
    more_headers: dict[str, str] = field(default_factory=dict)

    async def body(self, limit: int, within_s: float) -> bytes:
        """The whole body, unpacked where it is compressed.

        Raises BodyTooLarge as soon as it is, RequestTimeout and ClientLeft, UnsupportedEncoding,
        and InvalidRequest for what is not packed as it says.
        """
        body = None if self.direct is None else self.direct.whole_body()
        if body is None:
            body = await self._awaited(limit, within_s)
        else:
            self.unread = False
            if len(body) > limit:
                raise too_large(limit)
        encoding = self.headers.get("content-encoding")
        if encoding is None:
            return body
        if len(body) <= _FEW_PACKED:
            return decoded(body, encoding, limit)
        return await asyncio.to_thread(decoded, body, encoding, limit)

    async def _awaited(self, limit: int, within_s: float) -> bytes:
        """The body as it came, which is on its way."""
        alarm = _Alarm(within_s)
        try:
            return await self._body(limit)
        except asyncio.CancelledError:
            if not alarm.was_it():
                raise
            self.unread = False
            self.more_headers["connection"] = "close"
            raise RequestTimeout(
                f"The request body did not arrive within {within_s:g} s."
            ) from None
        finally:
            alarm.end()

    async def _body(self, limit: int) -> bytes:
        length = self.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > _DIGITS or int(length) > limit):
            raise too_large(limit)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise too_large(limit)
            parts.append(part)
            if not message.get("more_body", False):
                self.unread = False
                return b"".join(parts)

    async def left(self) -> None:
        """Return when the client has gone."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin a stream."""
        whole = self._begun(status, headers)
        if self.direct is not None:
            self.direct.start(status, whole)
        else:
            await self._start(status, whole)

    async def write(self, body: bytes) -> None:
        """Send a part of a stream, which is not empty."""
        if self.direct is not None:
            self.direct.write(body)
        else:
            await self._send_part(body, more=True)

    async def end(self, body: bytes) -> None:
        """Send the last part of a stream."""
        if self.direct is not None:
            self.direct.end(body)
        else:
            await self._send_part(body)

    def _begun(self, status: int, headers: Headers) -> list[tuple[bytes, bytes]]:
        """All headers of what is answered from now on."""
        self.begun, self.status = True, status
        own = self.request_id.hex.encode()
        given = self.client_request_id
        name = own if given is None else given.encode()
        more = encoded(self.more_headers) if self.more_headers else ()
        return [*headers, *more, (b"x-request-id", name), (b"request-id", b"req_" + own)]

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        message: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await self.send(message)

    async def _send_part(self, body: bytes, *, more: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def answer(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send a whole response, of JSON."""
        length = (b"content-length", b"%d" % len(body))
        whole = self._begun(status, (_JSON, length, *headers))
        if self.direct is not None and not self.unread:
            self.direct.answer(status, whole, body)
            return
        await self._start(status, whole)
        await self._send_part(body, more=self.unread)
        if self.unread:
            await self._drain()
            await self._send_part(b"")

    async def _drain(self) -> None:
        """A connection closed with bytes unread is reset, and with it the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while (await self.receive()).get("more_body", False):
                    pass


class _Alarm:
    """Cancels the task that makes it after so long, unless it is told to `end` before.

    As `asyncio.timeout`, at a fifth of its cost: a body is nearly always there already.
    """

    def __init__(self, within_s: float) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving = serving
        self._rang = False
        self._timer = asyncio.get_running_loop().call_later(within_s, self._ring)

    def _ring(self) -> None:
        self._rang = self._serving.cancel()

    def was_it(self) -> bool:
        """Whether it alone is why the task was cancelled, which then is over."""
        return self._rang and not self._serving.uncancel()

    def end(self) -> None:
        self._timer.cancel()


def client_request_id(headers: Mapping[str, str]) -> str | None:
    """The id that a client gave its request, where it is a plain word."""
    given = headers.get("x-request-id")
    return given if given is not None and _PLAIN_ID.fullmatch(given) else None


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as they are sent."""
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {limit} bytes.")
