"""uvicorn, told to stop in two steps, so that whoever balances has time to hear of it.

    SIGTERM ──▶ not ready, serves all the same ── drain_s ──▶ closed: what is in flight ends

A second signal skips the wait. Connections that the kernel has made and nobody has taken yet are
taken before the socket is closed, which would reset them.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from gateway.telemetry import get_logger

log = get_logger(__name__)

_CLOSE = (b"connection", b"close")


class Server(uvicorn.Server):
    """`draining` is called as the first step begins."""

    def __init__(
        self, config: uvicorn.Config, *, drain_s: float, draining: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._drain_s, self._tell = drain_s, draining
        self._loop = asyncio.get_running_loop()
        self._draining = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the signal's handler, between any two instructions of the loop's thread."""
        if self._draining or self.should_exit or not self._drain_s:
            super().handle_exit(sig, frame)
            return
        self._draining = True
        self._loop.call_soon_threadsafe(self._drain, sig)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            for listening in server.sockets:
                await self._take_in(listening.fileno())
        await super().shutdown(sockets)

    async def _take_in(self, descriptor: int) -> None:
        with socket.socket(fileno=os.dup(descriptor)) as listener:
            listener.setblocking(False)
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                await self._loop.connect_accepted_socket(self._connection, accepted)

    def _connection(self) -> asyncio.Protocol:
        kind = self.config.http_protocol_class
        state = self.lifespan.state
        return kind(config=self.config, server_state=self.server_state, app_state=state)  # type: ignore[call-arg]

    def _drain(self, sig: int) -> None:
        log.info("draining", seconds=self._drain_s)
        self._tell()
        # Kept connections end with their next answer. These headers go out with every one.
        self.config.encoded_headers.append(_CLOSE)
        self.server_state.default_headers = [*self.server_state.default_headers, _CLOSE]
        self._loop.call_later(self._drain_s, self._exit, sig)

    def _exit(self, sig: int) -> None:
        if not self.should_exit:
            super().handle_exit(sig, None)
