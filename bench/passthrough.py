"""The baselines: servers that hand a chat completion to the upstream and record nothing.

`python -m bench.passthrough NAME PORT UPSTREAM_PORT` runs one.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from bench.http_client import Connection, post

_PATH = "/v1/chat/completions"
_JSON = {"content-type": "application/json"}


def fastapi_aiohttp(upstream_port: int) -> FastAPI:
    """What a careful first attempt looks like: raw body, one aiohttp session, no models."""
    url = f"http://127.0.0.1:{upstream_port}{_PATH}"
    sessions: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            sessions.append(session)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post(_PATH)
    async def chat(request: Request) -> Response:
        reply = await sessions[0].post(url, data=await request.body(), headers=_JSON)
        kind = reply.headers.get("content-type", "application/json")
        if not kind.startswith("text/event-stream"):
            async with reply:
                body = await reply.read()
            return Response(body, status_code=reply.status, media_type=kind)

        async def parts() -> AsyncIterator[bytes]:
            async with reply:
                async for part in reply.content.iter_any():
                    yield part

        return StreamingResponse(parts(), status_code=reply.status, media_type=kind)

    return app


class BareAsgi:
    """The floor: no framework, no client library."""

    def __init__(self, upstream_port: int) -> None:
        self._port = upstream_port
        self._idle: deque[Connection] = deque()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        connection = await self._connection()
        ended = connection.exchange(post(_PATH, {}, body), parts.put_nowait)
        ended.add_done_callback(lambda _: parts.put_nowait(None))
        streamed = b'"stream":true' in body
        kind = b"text/event-stream" if streamed else b"application/json"
        headers = [(b"content-type", kind)]
        whole = b""
        if streamed:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        while (part := await parts.get()) is not None:
            if streamed:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            else:
                whole += part
        status = await ended
        if connection.alive:
            self._idle.append(connection)
        if not streamed:
            headers.append((b"content-length", str(len(whole)).encode()))
            await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": whole})

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
        return await Connection.open("127.0.0.1", self._port)


BASELINES: dict[str, Callable[[int], Any]] = {
    "fastapi_aiohttp": fastapi_aiohttp,
    "bare_asgi": BareAsgi,
}


def main(name: str, port: int, upstream_port: int) -> None:
    """Serve one baseline until SIGTERM."""
    uvicorn.run(
        BASELINES[name](upstream_port),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="auto" if name == "fastapi_aiohttp" else "off",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
