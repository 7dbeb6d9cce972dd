"""The kept connections to one inference server, for the requests that stream."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from gateway.config import EngineSettings
from gateway.engine.channel import Channel
from gateway.engine.http import KEEPALIVE_S, Refusal
from gateway.errors import EngineUnavailable

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Channels:
    """Opens as many connections as there are requests at once, and uses them again."""

    def __init__(self, settings: EngineSettings, refusal: Refusal) -> None:
        url = urlsplit(settings.url.rstrip("/"))
        self._name = settings.name
        self.refusal = refusal
        self._timeout_s = settings.connect_timeout_s
        self._host = url.hostname or ""
        self._port = url.port or _DEFAULT_PORTS.get(url.scheme, 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._path = url.path
        self._shared = f" HTTP/1.1\r\nHost: {url.netloc.rpartition('@')[2]}\r\n"
        self._shared += "Content-Type: application/json\r\nAccept: */*\r\n"
        if settings.api_key is not None:
            self._shared += f"Authorization: Bearer {settings.api_key.get_secret_value()}\r\n"
        elif url.username is not None:
            named = f"{unquote(url.username)}:{unquote(url.password or '')}".encode()
            self._shared += f"Authorization: Basic {b64encode(named).decode()}\r\n"
        #: With the loop's time since which each has been idle, the newest last.
        self._idle: deque[tuple[float, Channel]] = deque()
        self._closed = False

    @property
    def idle(self) -> int:
        """How many connections wait for a request."""
        return len(self._idle)

    def post(
        self, path: str, body: bytes, silence_s: float, traceparent: str | None = None
    ) -> Exchange:
        """A POST to enter with `async with`, which raises what a status other than 200 means.

        `silence_s` bounds the wait for the reply and every gap within it. All of it raises
        EngineUnavailable or EngineTimeout where the network fails.
        """
        traced = "" if traceparent is None else f"traceparent: {traceparent}\r\n"
        head = f"POST {self._path}{path}{self._shared}{traced}Content-Length: {len(body)}\r\n\r\n"
        return Exchange(self, head.encode("latin-1"), body, silence_s)

    async def open(self) -> Channel:
        """An idle connection, or a new one."""
        if self._closed:
            raise EngineUnavailable("the engine's client is closed", engine=self._name)
        self._forget()
        while self._idle:
            _, channel = self._idle.pop()
            if channel.alive:
                return channel
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                _, channel = await loop.create_connection(
                    lambda: Channel(self._name, self._rested), self._host, self._port, ssl=self._tls
                )
        except TimeoutError as error:
            raise EngineUnavailable("cannot connect in time", engine=self._name) from error
        except (OSError, ValueError) as error:
            raise EngineUnavailable(f"cannot be reached: {error}", engine=self._name) from error
        return channel

    def close(self) -> None:
        """Close what is idle; what serves closes as it ends."""
        self._closed = True
        while self._idle:
            self._idle.pop()[1].abort()

    def _rested(self, channel: Channel) -> None:
        if self._closed:
            channel.abort()
        else:
            self._idle.append((asyncio.get_running_loop().time(), channel))

    def _forget(self) -> None:
        """Close connections that the server is about to close, and drop those that it has."""
        since = asyncio.get_running_loop().time() - KEEPALIVE_S
        while self._idle and (self._idle[0][0] < since or not self._idle[0][1].alive):
            self._idle.popleft()[1].abort()


class Exchange:
    """One reply. Leaving before `settled` is set closes the connection under it."""

    def __init__(self, channels: Channels, head: bytes, body: bytes, silence_s: float) -> None:
        self._channels = channels
        self._head, self._body = head, body
        self._silence_s = silence_s
        self._channel: Channel | None = None
        #: Nothing that matters follows: the rest is read beside, and the connection kept.
        self.settled = False

    async def __aenter__(self) -> Self:
        self._channel = channel = await self._channels.open()
        said = b""
        try:
            channel.ask(self._head, self._body)
            status = await channel.status(self._silence_s)
            if status == 200:
                return self
            while part := await self.part():
                said += part
        except BaseException:
            channel.abort()
            raise
        channel.release()
        raise self._channels.refusal(status, said)

    def part(self) -> Coroutine[None, None, bytes]:
        """What has arrived of the body; empty at its end."""
        assert self._channel is not None
        return self._channel.part(self._silence_s)

    def pour(self, take: Callable[[bytes], bool]) -> Coroutine[None, None, bool]:
        """Give each part to `take` as it arrives, until that says False; whether it did."""
        assert self._channel is not None
        return self._channel.pour(take, self._silence_s)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._channel is not None
        if self.settled:
            self._channel.release()
        else:
            self._channel.abort()
