"""Several streams as one, in the order in which their items come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def interleaved(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The items of all streams. The first error, and closing this early, closes all of them.

    Each stream is asked for its next item once the one before was taken, so that a slow reader
    slows them all. One stream alone is passed on as it is, without a task an item.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield item
        return
    waiting = {_next(stream): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = waiting[task]
                try:
                    item = task.result()
                except StopAsyncIteration:
                    del waiting[task]
                    continue
                yield item
                del waiting[task]
                waiting[_next(stream)] = stream
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(*(stream.aclose() for stream in streams))


def _next(stream: AsyncGenerator[T, None]) -> asyncio.Task[T]:
    async def take() -> T:
        return await anext(stream)

    return asyncio.create_task(take())
