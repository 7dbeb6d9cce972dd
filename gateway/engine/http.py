"""One HTTP session with one inference server, for life; its failures as errors of the one tree."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp

from gateway.config import EngineSettings
from gateway.errors import EngineError, EngineTimeout, EngineUnavailable

_DRAIN_TIMEOUT_S = 1.0
#: SGLang closes a connection that was idle for 5 s; one about to be closed must not be used.
KEEPALIVE_S = 4.0

#: The error that a status other than 200 means, from the reply's body.
Refusal = Callable[[int, bytes], EngineError]


class EngineClient:
    """Requests to one server, and to none that it would send them on to.

    All raise EngineUnavailable or EngineTimeout, or a refusal.
    """

    def __init__(self, settings: EngineSettings, refusal: Refusal) -> None:
        self._settings = settings
        self._url = settings.url.rstrip("/")
        self._refusal = refusal
        self._session: aiohttp.ClientSession | None = None
        self.closed = False

    async def get(self, path: str, also: tuple[int, ...] = ()) -> bytes:
        """The body of a reply with status 200, or with one that will do `also`."""
        timeout = aiohttp.ClientTimeout(
            total=2 * self._settings.connect_timeout_s,
            sock_connect=self._settings.connect_timeout_s,
        )
        with self._translated():
            async with self._open().get(
                self._url + path, timeout=timeout, allow_redirects=False
            ) as response:
                return await self.read(response, also)

    @contextlib.asynccontextmanager
    async def post(
        self, path: str, body: bytes, silence_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An accepted POST; `silence_s` bounds the wait for the reply and every gap within it."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._settings.connect_timeout_s, sock_read=silence_s
        )
        with self._translated():
            response = await self._open().post(
                self._url + path, data=body, timeout=timeout, allow_redirects=False
            )
        try:
            if response.status != 200:
                await self.read(response)
            yield response
        finally:
            response.release()

    async def read(self, response: aiohttp.ClientResponse, also: tuple[int, ...] = ()) -> bytes:
        """The body of a reply. Raises what its status means."""
        with self._translated():
            body = await response.read()
        if response.status != 200 and response.status not in also:
            raise self._refusal(response.status, body)
        return body

    async def part(self, response: aiohttp.ClientResponse) -> bytes:
        """What has arrived of a stream; empty at its end."""
        with self._translated():
            return await response.content.readany()

    async def drain(self, response: aiohttp.ClientResponse) -> None:
        """Read the end of a finished stream, so that its connection can be used again."""
        with contextlib.suppress(EngineUnavailable, EngineTimeout, TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                while await self.part(response):
                    pass

    async def close(self) -> None:
        self.closed = True
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        name = self._settings.name
        if self.closed:
            raise EngineUnavailable("the engine's client is closed", engine=name)
        if self._session is None:
            key = self._settings.api_key
            headers = {"Content-Type": "application/json"}
            if key is not None:
                headers["Authorization"] = f"Bearer {key.get_secret_value()}"
            self._session = aiohttp.ClientSession(
                headers=headers,
                # As many streams as requests: the gateway bounds those, not the connector.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            )
        return self._session

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Network failures as errors of the one tree."""
        name = self._settings.name
        try:
            yield
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineUnavailable(f"cannot connect: {error}", engine=name) from error
        except TimeoutError as error:
            raise EngineTimeout(f"no answer in time: {error}", engine=name) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"cannot be reached: {error}", engine=name) from error
