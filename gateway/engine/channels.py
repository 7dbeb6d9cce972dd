"""The kept connections to one inference server, for the requests that stream."""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64encode
from collections import deque
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
        self._refusal = refusal
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
        #: With the time since which each has been idle, the newest last.
        self._idle: deque[tuple[float, Channel]] = deque()
        self._closed = False

    @property
    def idle(self) -> int:
        """How many connections wait for a request."""
        return len(self._idle)

    async def post(
        self, path: str, body: bytes, silence_s: float, traceparent: str | None = None
    ) -> Channel:
        """POST; the connection that the reply comes over, which has begun with status 200.

        Have it released or aborted in every case. `silence_s` bounds the wait for the reply and
        every gap within it. Raises what another status means, and EngineUnavailable or
        EngineTimeout where the network fails, as all that is asked of the connection does.
        """
        traced = "" if traceparent is None else f"traceparent: {traceparent}\r\n"
        head = f"POST {self._path}{path}{self._shared}{traced}Content-Length: {len(body)}\r\n\r\n"
        channel = self._rested() or await self._opened()
        try:
            channel.ask(head.encode("latin-1"), body, silence_s)
            while channel.status is None:
                await channel.more()
            if channel.status == 200:
                return channel
            said = b""
            while part := await channel.part():
                said += part
        except BaseException:
            channel.abort()
            raise
        channel.release()
        raise self._refusal(channel.status, said)

    def _rested(self) -> Channel | None:
        """An idle connection."""
        if self._closed:
            raise EngineUnavailable("the engine's client is closed", engine=self._name)
        idle, since = self._idle, time.monotonic() - KEEPALIVE_S
        while idle and idle[0][0] < since:
            # The server is about to close it, or has.
            idle.popleft()[1].abort()
        while idle:
            _, channel = idle.pop()
            if channel.alive:
                return channel
        return None

    async def _opened(self) -> Channel:
        """A new connection."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                _, channel = await loop.create_connection(
                    lambda: Channel(self._name, self._keep), self._host, self._port, ssl=self._tls
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

    def _keep(self, channel: Channel) -> None:
        """It can serve another request."""
        if self._closed:
            channel.abort()
        else:
            self._idle.append((time.monotonic(), channel))
