"""What `upstream.c` does, for a machine without a C compiler: several times slower.

`python -m bench.upstream_server` prints the port that it listens on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast
from urllib.parse import parse_qs, urlsplit

import httptools
import uvloop

_MOST_REQUEST = 16 << 20


@dataclass(frozen=True, slots=True)
class Script:
    records: list[bytes]
    pace_s: float


_DONE = Script([b"HTTP/1.1 204 No Content\r\n\r\n"], 0)
_MISSING = Script([b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"], 0)


def records_of(body: bytes) -> list[bytes]:
    """The records of a script: `LENGTH`, a line feed and so many bytes each."""
    records, at = [], 0
    while at < len(body):
        line = body.index(b"\n", at)
        end = line + 1 + int(body[at:line])
        records.append(body[line + 1 : end])
        at = end
    return records


class Connection(asyncio.Protocol):
    """One client; its requests are answered one after another."""

    def __init__(self, scripts: dict[str, Script]) -> None:
        self._scripts = scripts
        self._parser = httptools.HttpRequestParser(self)
        self._target, self._body = b"", bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of it.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's name
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._target, self._body = b"", bytearray()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_body(self, body: bytes) -> None:
        assert self._transport is not None
        self._body += body
        if len(self._body) > _MOST_REQUEST:
            self._transport.abort()

    def on_message_complete(self) -> None:
        url = urlsplit(self._target.decode())
        if url.path == "/control":
            told = {name: values[0] for name, values in parse_qs(url.query).items()}
            pace_s = int(told["pace_us"]) / 1e6
            self._scripts[told["path"]] = Script(records_of(bytes(self._body)), pace_s)
            self._play(_DONE)
        else:
            self._play(self._scripts.get(url.path, _MISSING))

    def _play(self, script: Script) -> None:
        assert self._transport is not None
        if script.pace_s == 0:
            self._transport.write(b"".join(script.records))
            return
        loop = asyncio.get_running_loop()
        due = loop.time()

        def send(index: int) -> None:
            assert self._transport is not None
            self._transport.write(script.records[index])
            if index + 1 < len(script.records):
                at = due + (index + 1) * script.pace_s
                self._timer = loop.call_at(at, send, index + 1)

        send(0)


async def main() -> None:
    """Serve until the process is ended."""
    scripts: dict[str, Script] = {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(scripts), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
