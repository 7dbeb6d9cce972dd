"""Several works side by side."""

from __future__ import annotations

import asyncio

import pytest

from gateway.pipeline.together import together


class Work:
    """Ends with a number once it is let go on, or with an error."""

    def __init__(self, result: int, error: Exception | None = None) -> None:
        self.result, self.error = result, error
        self.gate = asyncio.Event()
        self.ended = False

    async def run(self) -> int:
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            return self.result
        finally:
            self.ended = True


async def test_results_are_in_the_order_of_the_works_whichever_ends_first() -> None:
    first, second = Work(1), Work(2)
    both = asyncio.create_task(together([first.run(), second.run()]))
    second.gate.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert (second.ended, both.done()) == (True, False)
    first.gate.set()
    assert await both == [1, 2]


@pytest.mark.parametrize("others", [1, 2])
async def test_the_first_error_ends_all(others: int) -> None:
    broken = Work(1, ValueError("broken"))
    waiting = [Work(5) for _ in range(others)]
    broken.gate.set()
    with pytest.raises(ValueError, match="broken"):
        await together([*(work.run() for work in waiting), broken.run()])
    assert all(work.ended for work in [broken, *waiting])


@pytest.mark.parametrize("count", [2, 3])
async def test_being_cancelled_ends_all(count: int) -> None:
    works = [Work(number) for number in range(count)]
    task = asyncio.create_task(together([work.run() for work in works]))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(work.ended for work in works)


async def test_two_errors_at_once_are_one() -> None:
    broken = [Work(1, ValueError("one")), Work(2, ValueError("two"))]
    for work in broken:
        work.gate.set()
    with pytest.raises(ValueError, match=r"one|two"):
        await together([work.run() for work in broken])
