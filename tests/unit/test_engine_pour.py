"""Parts of a reply that are handed over at the moment they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.config import EngineSettings
from gateway.engine import codec
from gateway.engine.channel import Channel
from gateway.engine.channels import Channels
from gateway.errors import EngineError, EngineTimeout, EngineUnavailable

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def refusal(status: int, body: bytes) -> EngineError:
    return codec.refusal(status, codec.words(body), "e")


class Teller:
    """A server that answers its one request with what it is told to say, when it is."""

    def __init__(self) -> None:
        self._writer: asyncio.Future[asyncio.StreamWriter] = asyncio.Future()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(HEAD)
            self._writer.set_result(writer)
            # Until its client closes the connection.
            await reader.read()
        finally:
            writer.close()

    async def says(self, *parts: bytes, after: bytes = b"") -> None:
        writer = await self._writer
        writer.write(b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + after)
        await writer.drain()

    async def leaves(self) -> None:
        (await self._writer).close()


@asynccontextmanager
async def asked(silence_s: float = 5.0) -> AsyncIterator[tuple[Teller, Channel]]:
    teller = Teller()
    listener = await asyncio.start_server(teller.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    channels = Channels(EngineSettings(url=f"http://127.0.0.1:{port}"), refusal)
    try:
        reply = await channels.post("/generate", b"{}", silence_s)
        try:
            yield teller, reply
        finally:
            reply.abort()
    finally:
        channels.close()
        listener.close()
        await listener.wait_closed()


class Taken:
    """Takes parts, the first `most` of them gladly, and tells when each came."""

    def __init__(self, most: int = 100) -> None:
        self.parts: list[bytes] = []
        self._most = most
        self._came = asyncio.Event()

    def __call__(self, part: bytes) -> bool:
        self.parts.append(part)
        self._came.set()
        return len(self.parts) < self._most

    async def came(self) -> None:
        await asyncio.wait_for(self._came.wait(), 120)
        self._came.clear()


async def test_each_part_comes_as_it_is_sent() -> None:
    taken = Taken()
    async with asked() as (teller, reply):
        pouring = asyncio.create_task(reply.pour(taken))
        for part in (b"one", b"two"):
            await teller.says(part)
            await taken.came()
        assert taken.parts == [b"one", b"two"]
        assert not pouring.done()
        await teller.says(b"three", after=END)
        assert await pouring is False
        assert b"".join(taken.parts) == b"onetwothree"


async def test_what_is_there_already_is_poured_first() -> None:
    taken = Taken()
    async with asked() as (teller, reply):
        await teller.says(b"one")
        assert await reply.part() == b"one"
        await teller.says(b"two", after=END)
        assert await reply.pour(taken) is False
        assert taken.parts == [b"two"]
        assert await reply.part() == b""


async def test_who_takes_no_more_is_given_no_more() -> None:
    taken = Taken(most=1)
    async with asked() as (teller, reply):
        pouring = asyncio.create_task(reply.pour(taken))
        await teller.says(b"one")
        assert await pouring is True
        await teller.says(b"two", after=END)
        assert taken.parts == [b"one"]
        rest = b""
        while part := await reply.part():
            rest += part
        assert rest == b"two"


async def test_what_taking_raises_is_raised_where_it_is_poured() -> None:
    def take(part: bytes) -> bool:
        raise ValueError(part.decode())

    async with asked() as (teller, reply):
        pouring = asyncio.create_task(reply.pour(take))
        await teller.says(b"one")
        with pytest.raises(ValueError, match="one"):
            await pouring


async def poured(silence_s: float, *said: bytes, leaves: bool = False) -> None:
    """Ask for a reply, of which some is said and no end, and have it poured."""
    async with asked(silence_s) as (teller, reply):
        await teller.says(*said)
        if leaves:
            await teller.leaves()
        await reply.pour(Taken())


async def test_silence_is_bounded_while_it_is_poured() -> None:
    with pytest.raises(EngineTimeout):
        await poured(0.05, b"one")


async def test_a_server_that_leaves_while_it_is_poured_is_unavailable() -> None:
    with pytest.raises(EngineUnavailable):
        await poured(60.0, b"one", leaves=True)
