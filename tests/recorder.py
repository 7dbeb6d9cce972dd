"""Stands between a client and a gateway: passes on every byte, and keeps what was said.

It also stands where a client would go out to the world: `outside` lists the hosts that were asked
for through the proxy settings of `environ`, none of which is let through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

#: Headers that belong to one connection.
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade"}


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request as it was sent, and the answer's bytes. Header names are lower-case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer: bytes = b""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """`url` is where clients find the gateway, `exchanges` what they sent, in order."""

    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def recording(upstream: str) -> AsyncIterator[Recorder]:
    """Record what goes to the gateway at `upstream` until the block ends."""
    recorder = Recorder()
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(auto_decompress=False, cookie_jar=jar) as http:

        async def passed(request: web.Request) -> web.StreamResponse:
            exchange = Exchange(
                method=request.method,
                path=request.path_qs,
                headers={name.lower(): value for name, value in request.headers.items()},
                body=await request.read(),
            )
            recorder.exchanges.append(exchange)
            headers = {k: v for k, v in exchange.headers.items() if k not in _HOP}
            async with http.request(
                exchange.method, upstream + exchange.path, headers=headers, data=exchange.body
            ) as answer:
                exchange.status = answer.status
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for part in answer.content.iter_any():
                    exchange.answer += part
                    await response.write(part)
                await response.write_eof()
                return response

        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", passed)
        runner = web.AppRunner(app, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        recorder.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with _border(recorder.outside) as border:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                recorder.environ |= {name: border, name.lower(): border}
            recorder.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
            try:
                yield recorder
            finally:
                await runner.cleanup()


@asynccontextmanager
async def _border(outside: list[str]) -> AsyncIterator[str]:
    """The address of a proxy that notes what is asked of it, and refuses."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        outside.append(line.decode("latin-1").strip())
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
