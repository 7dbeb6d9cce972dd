"""A conversation without its beginning, where all of it is more than the context holds.

Done only for who asks for it; others are told that their prompt is too long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from gateway.pipeline.bounds import ENGINE_RESERVE
from gateway.records import Message, TurnRequest

#: The least part of the context that is made room for, unless a reply may not be that long.
_REPLY_PART = 4

Measure = Callable[[TurnRequest], Awaitable[int]]


async def fitting(request: TurnRequest, limit: int, measure: Measure) -> TurnRequest:
    """The request, or what is left of it when its oldest messages are dropped.

    `measure` tells the length of a request's prompt in ids, `limit` is the context's. Instructions
    stay, results go with their calls, and no more is dropped than has to be. Where even the last
    message is too long the request is as it was, so that the client hears of its whole length.
    """
    if limit - await measure(request) > ENGINE_RESERVE:
        return request
    head, starts = _starts(request.messages)
    if not starts:
        return request
    most = limit // _REPLY_PART
    room = max(ENGINE_RESERVE + 1, min(request.sampling.max_tokens or most, most))
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if limit - await measure(_from(request, head, starts[middle])) >= room:
            high = middle
        else:
            low = middle + 1
    cut = _from(request, head, starts[low])
    return cut if limit - await measure(cut) > ENGINE_RESERVE else request


def _starts(messages: Sequence[Message]) -> tuple[int, list[int]]:
    """How many instructions there are before the conversation, and where it may begin instead."""
    head = 0
    while head < len(messages) and messages[head]["role"] in ("system", "developer"):
        head += 1
    starts = range(head + 1, len(messages))
    return head, [start for start in starts if messages[start]["role"] != "tool"]


def _from(request: TurnRequest, head: int, start: int) -> TurnRequest:
    messages = request.messages
    return replace(request, messages=(*messages[:head], *messages[start:]))
