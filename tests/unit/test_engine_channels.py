"""Plain connections to an engine: kept, bounded, and closed when in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.config import EngineSettings
from gateway.engine import codec
from gateway.engine.channel import Channel
from gateway.engine.channels import Channels
from gateway.errors import EngineError, EngineRejected, EngineTimeout, EngineUnavailable

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"


class Server:
    """Answers every request of a connection with the same bytes, or the first one alone."""

    def __init__(self, reply: bytes, *, closes: bool = False) -> None:
        self.reply, self.closes = reply, closes
        self.connections = 0
        self.heads: list[bytes] = []
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(self.reply)
                await writer.drain()
                if self.closes:
                    break
        except asyncio.IncompleteReadError:
            self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Channels]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    settings = EngineSettings(url=f"http://127.0.0.1:{port}/below")
    channels = Channels(settings, refusal)
    try:
        yield channels
    finally:
        channels.close()
        listener.close()
        await listener.wait_closed()


def refusal(status: int, body: bytes) -> EngineError:
    return codec.refusal(status, codec.words(body), "e")


async def asked(channels: Channels, silence_s: float = 5.0) -> Channel:
    return await channels.post("/generate", b"{}", silence_s)


async def read(channels: Channels, silence_s: float = 5.0) -> bytes:
    body = b""
    reply = await asked(channels, silence_s)
    try:
        while part := await reply.part():
            body += part
    except BaseException:
        reply.abort()
        raise
    reply.release()
    return body


@pytest.mark.parametrize("reply", [WHOLE, CHUNKED + b"0\r\n\r\n"])
async def test_a_connection_serves_one_request_after_another(reply: bytes) -> None:
    server = Server(reply)
    async with serving(server) as channels:
        assert [await read(channels) for _ in range(3)] == [b"ok"] * 3
    assert server.connections == 1
    assert server.heads[0].startswith(b"POST /below/generate HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_requests_at_once_have_a_connection_each() -> None:
    server = Server(WHOLE)
    async with serving(server) as channels:
        assert await asyncio.gather(*(read(channels) for _ in range(4))) == [b"ok"] * 4
    assert server.connections == 4


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    server = Server(WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), closes=True)
    async with serving(server) as channels:
        assert [await read(channels), await read(channels)] == [b"ok", b"ok"]
    assert server.connections == 2


async def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    async with serving(Server(b"HTTP/1.1 200 OK\r\n\r\nall of it", closes=True)) as channels:
        assert await read(channels) == b"all of it"


@pytest.mark.parametrize(
    "cut", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", CHUNKED, WHOLE[:-1], b"220 mail ready\r\n\r\n"]
)
async def test_a_reply_that_is_cut_or_no_http_is_unavailable(cut: bytes) -> None:
    async with serving(Server(cut, closes=True)) as channels:
        with pytest.raises(EngineUnavailable):
            await read(channels)


@pytest.mark.parametrize("start", [b"", CHUNKED])
async def test_silence_is_bounded_and_closes_the_connection(start: bytes) -> None:
    server = Server(start)
    async with serving(server) as channels:
        with pytest.raises(EngineTimeout):
            await read(channels, 0.05)
        await asyncio.wait_for(server.left.wait(), 120)


async def test_a_refusal_is_read_whole_and_keeps_its_connection() -> None:
    refused = b'HTTP/1.1 400 No\r\nContent-Length: 17\r\n\r\n{"error": "why?"}'
    server = Server(refused)
    async with serving(server) as channels:
        for _ in range(2):
            with pytest.raises(EngineRejected, match=r"why\?"):
                await read(channels)
    assert server.connections == 1


async def test_leaving_before_the_end_closes_the_connection() -> None:
    server = Server(CHUNKED)
    async with serving(server) as channels:
        reply = await asked(channels)
        assert await reply.part() == b"ok"
        reply.abort()
        await asyncio.wait_for(server.left.wait(), 120)


async def test_what_is_settled_ends_beside_and_keeps_its_connection() -> None:
    server = Server(CHUNKED + b"0\r\n\r\n")
    async with serving(server) as channels:
        for _ in range(3):
            reply = await asked(channels)
            assert await reply.part()
            reply.release()
            while not channels.idle:
                await asyncio.sleep(0)
    assert server.connections == 1


async def test_a_long_reply_that_nobody_reads_is_held_back() -> None:
    size = 64 << 20
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
    async with serving(server) as channels:
        reply = await asked(channels)
        first = await reply.part()
        for _ in range(50):
            await asyncio.sleep(0.002)
        held = await reply.part()
        assert len(held) < size // 2
        read = len(first) + len(held)
        while part := await reply.part():
            read += len(part)
        assert read == size
        reply.release()


async def test_nobody_listens() -> None:
    channels = Channels(EngineSettings(url="http://127.0.0.1:9"), refusal)
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        await read(channels)
    channels.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        await read(channels)
