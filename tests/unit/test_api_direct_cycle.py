"""Answers that go past ASGI: the bytes that reach the connection, and what becomes of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.api.direct_cycle import DIRECT, NOBODY, DirectCycle, direct_of

SERVER = (b"server", b"tests")
TYPE = (b"content-type", b"text/plain")


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True


def cycle(wire: Wire, *, keep_alive: bool = True, also: tuple[bytes, bytes] = SERVER) -> Any:
    log = logging.getLogger(__name__)
    return DirectCycle(
        scope={"type": "http", "method": "POST"},  # type: ignore[typeddict-item]
        transport=wire,
        flow=FlowControl(wire),
        logger=log,
        access_logger=log,
        access_log=False,
        default_headers=[also],
        message_event=NOBODY,
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: wire.written.append(b"over"),
    )


async def test_an_answer_is_one_write() -> None:
    wire = Wire()
    cycle(wire).answer(200, [TYPE, (b"content-length", b"2")], b"ok")
    head = b"HTTP/1.1 200 OK\r\nserver: tests\r\ncontent-type: text/plain\r\ncontent-length: 2"
    assert wire.written == [head + b"\r\n\r\nok", b"over"]
    assert not wire.closed


async def test_a_stream_is_chunked_and_its_head_goes_with_its_first_part() -> None:
    wire, head = Wire(), b"HTTP/1.1 200 OK\r\nserver: tests\r\n"
    made = cycle(wire)
    made.start(200, [])
    assert wire.written == []
    made.write(b"a" * 17)
    made.write(b"b")
    made.end(b"c")
    assert b"".join(wire.written) == (
        head + b"transfer-encoding: chunked\r\n\r\n"
        b"11\r\n" + b"a" * 17 + b"\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\nover"
    )
    assert made.response_complete


async def test_a_stream_of_nothing_is_whole() -> None:
    wire = Wire()
    made = cycle(wire)
    made.start(204, [])
    made.end(b"")
    assert b"".join(wire.written).endswith(b"chunked\r\n\r\n0\r\n\r\nover")


@pytest.mark.parametrize(
    ("keep_alive", "also", "said"),
    [
        (False, SERVER, 1),
        (True, (b"connection", b"close"), 1),
        (False, (b"connection", b"Close"), 1),
    ],
)
async def test_a_connection_that_is_to_end_says_so_once_and_does(
    keep_alive: bool, also: tuple[bytes, bytes], said: int
) -> None:
    wire = Wire()
    cycle(wire, keep_alive=keep_alive, also=also).answer(200, [(b"content-length", b"0")], b"")
    assert wire.written[0].lower().count(b"connection: close\r\n") == said
    assert wire.closed


async def test_nothing_is_written_to_a_client_that_has_gone() -> None:
    wire = Wire()
    made = cycle(wire)
    made.start(200, [])
    made.disconnected = True
    made.write(b"a")
    made.end(b"b")
    cycle_that_answers = cycle(wire)
    cycle_that_answers.disconnected = True
    cycle_that_answers.answer(200, [], b"")
    assert wire.written == []


@pytest.mark.parametrize("value", [b"a\r\nx: b", b"a\nb", b"a\rb"])
async def test_a_line_break_in_a_header_is_never_sent(value: bytes) -> None:
    wire = Wire()
    with pytest.raises(RuntimeError, match="line break"):
        cycle(wire).answer(200, [(b"x", value)], b"")
    assert wire.written == []


async def test_who_reads_slowly_is_waited_for() -> None:
    made = cycle(Wire())
    assert not made.behind
    made.flow.pause_writing()
    assert made.behind
    waiting = asyncio.create_task(made.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    made.flow.resume_writing()
    await waiting
    assert not made.behind


async def test_who_begins_to_wait_hears_what_came_before() -> None:
    made = cycle(Wire())
    made.body += b"ab"
    assert await made.receive() == {"type": "http.request", "body": b"ab", "more_body": True}
    waiting = asyncio.create_task(made.receive())
    await asyncio.sleep(0)
    assert not waiting.done()
    made.more_body = False
    made.message_event.set()
    assert await waiting == {"type": "http.request", "body": b"", "more_body": False}


async def test_behind_the_whole_body_only_the_end_is_heard() -> None:
    made = cycle(Wire())
    made.body += b"ab"
    assert made.whole_body() is None
    made.more_body = False
    assert made.whole_body() == b"ab"
    waiting = asyncio.create_task(made.receive())
    await asyncio.sleep(0)
    assert not waiting.done()
    made.answer(200, [], b"")
    assert await waiting == {"type": "http.disconnect"}


async def test_endpoints_find_it_where_the_server_has_it() -> None:
    made = cycle(Wire())
    assert direct_of({"extensions": {DIRECT: made}}) is made
    assert direct_of({"extensions": {}}) is None
    assert direct_of({}) is None
