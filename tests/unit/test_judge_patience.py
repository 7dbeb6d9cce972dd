from __future__ import annotations

import asyncio

import pytest

from gateway.errors import JudgeError, StoreUnavailable
from judge.patience import patiently


async def test_it_goes_on_until_postgres_is_back() -> None:
    answers = [StoreUnavailable("gone"), StoreUnavailable("gone"), "here"]

    async def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await patiently(ask, first_s=0.001) == "here"
    assert answers == []


async def test_being_stopped_ends_the_wait() -> None:
    stop = asyncio.Event()

    async def ask() -> str:
        asyncio.get_running_loop().call_later(0.01, stop.set)
        raise StoreUnavailable("gone")

    async with asyncio.timeout(120):
        assert await patiently(ask, stop, first_s=3600) is None


async def test_other_errors_come_through() -> None:
    async def ask() -> str:
        raise JudgeError("no")

    with pytest.raises(JudgeError):
        await patiently(ask)
