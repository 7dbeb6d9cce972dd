"""Work ends when its client goes, under a server that tells of it by ASGI alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.api.exchange import ClientLeft, Exchange
from gateway.api.while_there import WhileThere
from gateway.records import new_id


class Client:
    """Goes when it is told to; `asked` counts how often the server was asked for it."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.asked = 0
        self.exchange = Exchange({}, self.receive, self.send, new_id())

    async def receive(self) -> Any:
        self.asked += 1
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        raise AssertionError("nothing is sent here")


async def test_work_is_cancelled_when_the_client_goes() -> None:
    client = Client()
    asyncio.get_running_loop().call_later(0.2, client.gone.set)
    with pytest.raises(ClientLeft), WhileThere(client.exchange):
        await asyncio.sleep(60)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_work_that_is_soon_done_is_not_watched() -> None:
    client = Client()
    with WhileThere(client.exchange):
        await asyncio.sleep(0)
    await asyncio.sleep(0.2)
    assert not client.asked


async def test_a_client_that_goes_later_cancels_nothing() -> None:
    client = Client()
    with WhileThere(client.exchange):
        await asyncio.sleep(0.2)
    assert client.asked == 1
    client.gone.set()
    await asyncio.sleep(0.05)


async def test_who_else_cancels_work_is_heard() -> None:
    client = Client()

    async def work() -> None:
        with WhileThere(client.exchange):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.15)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_work_is_its_own() -> None:
    with pytest.raises(ValueError, match="own"), WhileThere(Client().exchange):
        raise ValueError("own")
