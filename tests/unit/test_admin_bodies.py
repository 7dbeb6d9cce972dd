"""Bodies of the admin API: bounded in time, cut into lines, tagged for those who read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from gateway.api import admin_transfer, body_limit
from gateway.api.admin_answer import answer

Messages = list[tuple[bytes, bool]]


def scope(method: str = "POST", **headers: str) -> Scope:
    named = [(name.replace("_", "-").encode(), one.encode()) for name, one in headers.items()]
    return {"type": "http", "method": method, "path": "/admin/v1/keys", "headers": named}


def sent(*parts: bytes, ends: bool = True) -> Receive:
    """What a server hands on of a body in these parts, and then of a client that stays."""
    left: Messages = [(part, True) for part in parts]
    if ends and left:
        left[-1] = (left[-1][0], False)

    async def receive() -> Message:
        if not left:
            await asyncio.Event().wait()
        body, more = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": more}

    return receive


async def test_a_body_that_does_not_end_is_waited_for_no_longer_than_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body_limit, "MOST_S", 0.02)
    receive = body_limit.bounded(scope(), sent(b"{", ends=False))
    assert (await receive())["body"] == b"{"
    with pytest.raises(HTTPException) as slow:
        await receive()
    assert slow.value.status_code == 408
    # What follows a whole body is that the client leaves, whenever that is.
    receive = body_limit.bounded(scope(), sent(b"{", b"}"))
    assert [(await receive())["body"] for _ in range(2)] == [b"{", b"}"]
    leaving = asyncio.ensure_future(receive())
    await asyncio.sleep(0.1)
    assert not leaving.done()
    leaving.cancel()


async def test_lines_are_the_same_however_they_are_cut() -> None:
    for parts in (
        (b"ab\nc\n\n \nd",),
        (b"a", b"b\nc", b"\n\n ", b"\n", b"d"),
        (b"ab\n", b"c\nd\n"),
    ):
        read = [line async for line in admin_transfer._read(Request(scope(), sent(*parts)), 10.0)]
        assert read == [b"ab", b"c", b"d"]


def test_only_a_get_is_told_that_nothing_has_changed() -> None:
    def answered(method: str, **headers: str) -> tuple[int, Any]:
        found = answer(Request(scope(method, **headers)), {"a": 1})
        return found.status_code, found.body

    tag = answer(Request(scope("GET")), {"a": 1}).headers["etag"]
    for named in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        assert answered("GET", if_none_match=named) == (304, b"")
        assert answered("POST", if_none_match=named) == (200, b'{"a":1}')
    assert answered("GET", if_none_match='"other"') == (200, b'{"a":1}')
