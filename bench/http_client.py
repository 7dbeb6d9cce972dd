"""An HTTP/1.1 client without a layer to spare: one protocol, one parser, connections kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self, cast

import httptools


class BrokenReply(ConnectionError):
    """The connection ended before the reply did, or carried something that is not HTTP."""


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._ended: asyncio.Future[int] | None = None
        self._on_head: Callable[[int], None] | None = None
        self._on_part: Callable[[bytes], None] | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port)
        return connection

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def exchange(
        self,
        message: bytes,
        on_part: Callable[[bytes], None],
        on_head: Callable[[int], None] | None = None,
    ) -> asyncio.Future[int]:
        """Send a whole request; the status, once the reply has ended.

        `on_part` hears of its body as it arrives. The future raises BrokenReply.
        """
        assert self._transport is not None, "the connection is closed"
        assert self._ended is None, "an exchange is under way"
        self._parser = httptools.HttpResponseParser(self)
        self._on_head, self._on_part = on_head, on_part
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return self._ended

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of it.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(str(exc or "closed by the server"))

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(str(error))
            self.close()

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self._on_head is not None:
            self._on_head(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        assert self._on_part is not None
        self._on_part(body)

    def on_message_complete(self) -> None:
        ended, parser = self._ended, self._parser
        self._ended = None
        assert parser is not None
        if not parser.should_keep_alive():
            self.close()
        if ended is not None and not ended.done():
            ended.set_result(parser.get_status_code())

    def _fail(self, why: str) -> None:
        ended, self._ended = self._ended, None
        if ended is not None and not ended.done():
            ended.set_exception(BrokenReply(why))


def post(path: str, headers: dict[str, str], body: bytes) -> bytes:
    """A POST of JSON as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body
