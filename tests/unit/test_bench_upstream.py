"""The upstream in C and the one in Python answer alike, byte for byte."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.conversations import Conversation
from bench.http_client import Connection, post
from bench.load import LoadFailed, Target, closed_loop
from bench.scripts import json_reply
from bench.upstream import Upstream

KINDS = ["python", "c"] if shutil.which("cc") else ["python"]


@pytest.fixture(params=KINDS)
async def upstream(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Upstream]:
    monkeypatch.setenv("CC", "cc" if request.param == "c" else "no-such-compiler")
    said: list[str] = []
    started = await Upstream.start(tmp_path, said.append)
    assert bool(said) == (request.param == "python")
    try:
        yield started
    finally:
        started.process.stop()


async def ask(connection: Connection, path: str, body: bytes = b"{}") -> tuple[int, list[bytes]]:
    parts: list[bytes] = []
    status = await connection.exchange(post(path, {}, body), parts.append)
    return status, parts


async def test_it_replays_what_it_was_told_over_one_connection(upstream: Upstream) -> None:
    large = b"x" * 300_000
    await upstream.says("/one", [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", b"cde"])
    await upstream.says("/big", [json_reply({"text": large.decode()})])
    connection = await Connection.open("127.0.0.1", upstream.port)
    try:
        for _ in range(2):
            status, parts = await ask(connection, "/one", large)
            assert (status, b"".join(parts)) == (200, b"abcde")
            status, parts = await ask(connection, "/big")
            assert b"".join(parts) == b'{"text":"' + large + b'"}'
        assert await ask(connection, "/other") == (404, [])
    finally:
        connection.close()


async def test_records_sent_one_by_one_are_all_there_and_can_be_replaced(
    upstream: Upstream,
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"
    await upstream.says("/one", [head + b"a", b"b", b"c"], pace_s=0.02)
    connections = [await Connection.open("127.0.0.1", upstream.port) for _ in range(3)]
    try:
        replies = await asyncio.gather(*(ask(each, "/one") for each in connections))
        assert [(status, b"".join(parts)) for status, parts in replies] == [(200, b"abc")] * 3
        await upstream.says("/one", [head + b"xyz"])
        assert await ask(connections[0], "/one") == (200, [b"xyz"])
    finally:
        for connection in connections:
            connection.close()


async def test_the_load_asks_each_question_once(upstream: Upstream) -> None:
    choice = {"message": {"role": "assistant", "content": "Four."}}
    await upstream.says("/v1/chat/completions", [json_reply({"choices": [choice]})])
    target = Target(port=upstream.port)

    def conversations() -> list[Conversation]:
        asked = [{"role": "user", "content": "2+2?"}]
        return [Conversation(asked, ["3+3?"], model="m", max_tokens=8) for _ in range(5)]

    made = conversations()
    seen = await closed_loop(target, made, 2, turns=1)
    assert len(seen.latencies_ms) == len(seen.first_ms) == 5
    seen = await closed_loop(target, made, 2, turns=9)
    assert len(seen.latencies_ms) == 5
    assert all(conversation.done for conversation in made)
    await upstream.says("/v1/chat/completions", [json_reply({"error": "no"})])
    with pytest.raises(LoadFailed, match="no"):
        await closed_loop(target, conversations(), 2, turns=1)
