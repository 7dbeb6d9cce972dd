"""Back-pressure on an endpoint: halved when it suffers, left alone when it is gone."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import JudgeUnavailable
from judge.config import LlmConfig
from judge.endpoint import Endpoint
from judge.places import Places
from judge.prompts import grade
from judge.transcript import Piece
from tests.scripted_judge import ScriptedJudge, grading


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_trouble_halves_and_answers_bring_it_back_by_one_a_round() -> None:
    places = Places(8)
    places.failed()
    assert places.limit == 4
    for _ in range(4):
        places.answered()
    # 4 + 1/4 + ... : nearly one more after as many answers as there are places.
    assert places.limit == 4
    places.answered()
    assert places.limit == 5
    for _ in range(100):
        places.answered()
    assert places.limit == 8


def test_three_failures_in_a_row_close_it_each_time_for_longer() -> None:
    clock = Clock()
    places = Places(8, clock)
    places.failed()
    places.failed()
    places.answered()
    places.failed()
    places.failed()
    assert places.closed_s == 0
    waits = []
    for _ in range(8):
        places.failed()
        waits.append(places.closed_s)
        # What was under way when it was closed makes nothing worse.
        places.failed()
        assert places.closed_s == waits[-1]
        clock.now += places.closed_s
        assert (places.closed_s, places.limit) == (0, 1)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    places.answered()
    places.failed()
    assert places.closed_s == 0


def test_what_the_server_asks_for_is_kept_within_a_minute() -> None:
    clock = Clock()
    places = Places(8, clock)
    places.failed(7.0)
    assert places.closed_s == 7
    clock.now += 7
    places.failed(3600.0)
    assert places.closed_s == 60


async def test_one_waits_for_a_place_and_none_is_taken_where_it_is_closed() -> None:
    places = Places(1)
    assert await places.take()
    second = asyncio.create_task(places.take())
    third = asyncio.create_task(places.take())
    await asyncio.sleep(0)
    assert not second.done()
    places.give_back()
    assert await second
    places.failed(30)
    assert not await third
    assert places.running == 1


async def test_an_endpoint_that_fails_is_not_asked_again_and_again() -> None:
    question = grade([Piece("reply", "Oslo.")])
    async with ScriptedJudge(lambda _: 503) as server:
        config = LlmConfig(base_url=server.url, model="m", retries=0)
        endpoint = Endpoint(config)
        errors = []
        for _ in range(10):
            with pytest.raises(JudgeUnavailable) as caught:
                await endpoint.ask(question)
            errors.append(caught.value)
        assert len(server.requests) == 3
        assert [error.retry_after_s > 0 for error in errors] == [False, False] + [True] * 8
        assert "left alone" in errors[-1].message
        assert endpoint.places.running == 0
        await endpoint.close()


async def test_an_endpoint_that_is_back_is_asked_once_and_then_again_by_many() -> None:
    clock = Clock()
    question = grade([Piece("reply", "Oslo.")])
    async with ScriptedJudge(grading(1)) as server:
        config = LlmConfig(base_url=server.url, model="m", retries=0)
        endpoint = Endpoint(config, places=Places(4, clock))
        endpoint.places.failed(20)
        with pytest.raises(JudgeUnavailable):
            await endpoint.ask(question)
        clock.now += 20
        answers = await asyncio.gather(*(endpoint.ask(question) for _ in range(3)))
        assert len(answers) == len(server.requests) == 3
        await endpoint.close()
