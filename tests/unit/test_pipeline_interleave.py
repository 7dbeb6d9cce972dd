"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from gateway.pipeline.interleave import interleaved


class Stream:
    """Yields numbers, one each time that it is let go on."""

    def __init__(self, *items: int, error: Exception | None = None) -> None:
        self.items, self.error = items, error
        self.gate = asyncio.Semaphore(0)
        self.closed = False

    async def run(self) -> AsyncGenerator[int, None]:
        try:
            for item in self.items:
                await self.gate.acquire()
                yield item
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


async def test_items_come_in_the_order_in_which_they_are_ready() -> None:
    a, b = Stream(1, 2), Stream(10, 20)
    taken = []
    async with aclosing(interleaved([a.run(), b.run()])) as merged:
        for stream in (b, a, a, b):
            stream.gate.release()
            taken.append(await anext(merged))
        assert [item async for item in merged] == []
    assert taken == [10, 1, 2, 20]
    assert (a.closed, b.closed) == (True, True)


@pytest.mark.parametrize("others", [0, 2])
async def test_the_first_error_closes_all(others: int) -> None:
    broken = Stream(1, error=ValueError("broken"))
    waiting = [Stream(5) for _ in range(others)]
    broken.gate.release()
    taken: list[int] = []

    async def read() -> None:
        async for item in interleaved([broken.run(), *(stream.run() for stream in waiting)]):
            taken.append(item)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(ValueError, match="broken"):
        await read()
    assert taken == [1]
    assert all(stream.closed for stream in [broken, *waiting])


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_early_closes_all(count: int) -> None:
    streams = [Stream(1, 2) for _ in range(count)]
    streams[0].gate.release()
    async with aclosing(interleaved([stream.run() for stream in streams])) as merged:
        assert await anext(merged) == 1
    # A stream that was never asked has nothing to close; all of these were.
    assert all(stream.closed for stream in streams)


async def test_being_cancelled_closes_all() -> None:
    streams = [Stream(1), Stream(2)]

    async def read() -> None:
        async for _ in interleaved([stream.run() for stream in streams]):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(stream.closed for stream in streams)
