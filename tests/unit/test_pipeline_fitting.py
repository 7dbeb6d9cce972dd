"""What is dropped of a conversation; here a prompt is as long as its messages are."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.pipeline.fitting import fitting
from gateway.records import Message, Sampling, TurnRequest

SYSTEM: Message = {"role": "system", "content": "s" * 10}


def user(length: int) -> Message:
    return {"role": "user", "content": "u" * length}


def said(length: int) -> Message:
    return {"role": "assistant", "content": "a" * length}


def result(length: int) -> Message:
    return {"role": "tool", "tool_call_id": "c", "content": "t" * length}


async def measure(request: TurnRequest) -> int:
    return sum(len(message["content"]) for message in request.messages)


def asked(*messages: Message, most: int | None = None) -> TurnRequest:
    sampling = Sampling(max_tokens=most)
    return TurnRequest(dialect="d", model="m", messages=messages, sampling=sampling)


async def left(request: TurnRequest, limit: int) -> str:
    """The roles of what is left, by their first letters."""
    found = await fitting(request, limit, measure)
    assert replace(found, messages=()) == replace(request, messages=())
    return "".join(message["role"][0] for message in found.messages)


LONG = (SYSTEM, user(20), said(20), user(20), said(20), user(20))  # 110 ids


@pytest.mark.parametrize(
    ("limit", "most", "expected"),
    [
        # 6 ids are the engine's own: with 7 left all is kept, whatever the reply may take.
        (117, None, "suauau"),
        (117, 100, "suauau"),
        # A reply of any length gets a quarter of the context: 110 - 20 + 29 = 119 > 116.
        (116, None, "suau"),
        # A short one gets what it may take: 90 + 10 <= 116.
        (116, 10, "sauau"),
        (60, 10, "sau"),
        # The last message stays though the reply has less room than it may take.
        (40, 100, "su"),
        # Not even that has room; the client is to hear of the whole.
        (36, 100, "suauau"),
    ],
)
async def test_the_oldest_go_first(limit: int, most: int | None, expected: str) -> None:
    assert await left(asked(*LONG, most=most), limit) == expected


async def test_results_go_with_their_calls() -> None:
    request = asked(user(30), said(10), result(40), result(10), said(10), result(10), most=7)
    # Without the first two messages 70 ids would fit, but results would stand without a call.
    assert await left(request, 80) == "at"
    assert await left(request, 87) == "attat"


@pytest.mark.parametrize(
    "messages", [(user(200),), (SYSTEM, user(200)), (SYSTEM, SYSTEM), (said(5), result(200))]
)
async def test_what_has_no_beginning_to_drop_is_left(messages: tuple[Any, ...]) -> None:
    request = asked(*messages)
    assert await fitting(request, 20, measure) is request
