"""Requests that go straight to an endpoint, as their bytes come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.api.direct_cycle import direct_of
from gateway.api.exchange import ClientLeft, Exchange
from gateway.api.protocol import BoundedHttp
from gateway.api.while_there import WhileThere
from gateway.records import new_id

HEAD = b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n"


class App:
    """Answers a straight request with its body; all others by ASGI."""

    def __init__(self) -> None:
        self.straight = {(b"POST", b"/echo"): self.echo}
        self.left = asyncio.Event()

    async def echo(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange({}, receive, send, new_id(), None, direct_of(scope))
        try:
            body = await exchange.body(100_000, 5)
        except ClientLeft:
            self.left.set()
            return
        if body == b"fail":
            raise ValueError("as it should")
        if body == b"mute":
            return
        if body == b"half":
            await exchange.begin(200, [])
            await exchange.write(b"a")
            raise ValueError("as it should")
        if body == b"slow":
            await asyncio.sleep(1.5)
        if body == b"stop":
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(1)
        if body == b"wait":
            try:
                with WhileThere(exchange):
                    await asyncio.sleep(60)
            except ClientLeft:
                self.left.set()
            return
        await exchange.answer(200, body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"] == "/echo"
        body, message = b"asgi", {"more_body": True}
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Served:
    """A connection to a server of the app."""

    def __init__(self, app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.app, self.reader, self.writer = app, reader, writer

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head.split()[1]), await self.reader.readexactly(length)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    app: Any = App()
    config = uvicorn.Config(
        app, http=BoundedHttp, lifespan="off", log_config=None, timeout_keep_alive=1
    )
    config.load()
    # What uvicorn wraps around an app has no `straight` of its own.
    config.loaded_app = app
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: BoundedHttp(config=config, server_state=state, app_state={}), "127.0.0.1"
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    yield Served(app, reader, writer)
    writer.close()
    server.close()
    async with asyncio.timeout(5):
        while state.tasks:
            await asyncio.sleep(0.01)


async def test_a_body_may_come_with_its_head_behind_it_and_in_parts(served: Served) -> None:
    for parts in ([HEAD + b"\r\nbody"], [HEAD, b"\r\n", b"bo", b"dy"], [HEAD + b"\r\nbo", b"dy"]):
        for part in parts:
            served.writer.write(part)
            await asyncio.sleep(0.02)
        assert await served.answer() == (200, b"body")


async def test_a_body_that_fills_the_buffer_is_read_on(served: Served) -> None:
    body = b"x" * 90_000
    head = HEAD.replace(b": 4", b": 90000")
    for part in (head + b"\r\n" + body[:70_000], body[70_000:]):
        served.writer.write(part)
        await asyncio.sleep(0.02)
    assert await served.answer() == (200, body)
    served.writer.write(HEAD + b"\r\nmore")
    assert await served.answer() == (200, b"more")


async def test_a_body_that_waits_to_be_asked_for_is(served: Served) -> None:
    served.writer.write(HEAD + b"expect: 100-continue\r\n\r\n")
    assert await served.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    served.writer.write(b"body")
    assert await served.answer() == (200, b"body")


async def test_requests_behind_one_another_are_answered_in_turn(served: Served) -> None:
    served.writer.write(b"".join(HEAD + b"\r\n" + body for body in (b"1st.", b"2nd.", b"3rd.")))
    assert [await served.answer() for _ in range(3)] == [
        (200, b"1st."),
        (200, b"2nd."),
        (200, b"3rd."),
    ]


async def test_what_asks_for_another_protocol_goes_the_usual_way(served: Served) -> None:
    """What follows it is of that protocol, and no body of it or of the request before."""
    upgrade = HEAD + b"connection: Upgrade\r\nupgrade: h2c\r\n\r\nbody"
    served.writer.write(HEAD + b"\r\n1st." + upgrade)
    assert await served.answer() == (200, b"1st.")
    assert await served.answer() == (200, b"asgi")


@pytest.mark.parametrize("how", [b"fail", b"mute", b"stop"])
async def test_an_endpoint_that_fails_is_told_of(
    served: Served, how: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    served.writer.write(HEAD + b"\r\n" + how)
    assert await served.answer() == (500, b"Internal Server Error")
    assert await served.reader.read() == b""
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_what_an_endpoint_began_and_did_not_end_is_cut_off(served: Served) -> None:
    served.writer.write(HEAD + b"\r\nhalf")
    told = await served.reader.read()
    assert told.startswith(b"HTTP/1.1 200 OK")
    assert told.endswith(b"1\r\na\r\n")


@pytest.mark.parametrize("body", [b"wait", b"bo"])
async def test_work_ends_when_its_client_goes(served: Served, body: bytes) -> None:
    served.writer.write(HEAD + b"\r\n" + body)
    await asyncio.sleep(0.05)
    served.writer.close()
    async with asyncio.timeout(5):
        await served.app.left.wait()


async def test_a_connection_is_kept_while_it_is_used_and_a_second_more(served: Served) -> None:
    for _ in range(3):
        served.writer.write(HEAD + b"\r\nbody")
        assert await served.answer() == (200, b"body")
        answered = asyncio.get_running_loop().time()
        await asyncio.sleep(0.4)
    assert await served.reader.read() == b""
    assert 0.9 < asyncio.get_running_loop().time() - answered < 5


async def test_a_request_may_take_longer_than_an_idle_connection_is_kept(served: Served) -> None:
    for body in (b"body", b"slow", b"body"):
        served.writer.write(HEAD + b"\r\n" + body)
        assert await served.answer() == (200, body)
