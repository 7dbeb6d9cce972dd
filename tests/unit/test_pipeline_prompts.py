"""Several prompts told of as one request."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from gateway.errors import EngineUnavailable
from gateway.pipeline import Ended, Finished, Listener, Piece, Started, serve_each
from gateway.records import Delta, FinishReason, Reply, Sampling, TurnRequest, Usage
from gateway.telemetry import bind, request_context
from gateway.telemetry.context import carried


def request(name: str, choices: int = 2) -> TurnRequest:
    return TurnRequest(
        dialect="d", model=name, messages=(), sampling=Sampling(), choices=choices
    )  # fmt: skip


def started(name: str) -> Started:
    return Started(turn_id=turn(name), session_id=turn(name), created_at=1.0, prompt_tokens=1)


def turn(name: str) -> UUID:
    return UUID(int=ord(name))


def piece(text: str, choice: int) -> Piece:
    return Piece(deltas=(Delta(text=text),), ids=(), logprobs=(), choice=choice)


def ended(name: str, choice: int, prompt_tokens: int = 3) -> Ended:
    return Ended(
        choice=choice,
        turn_id=turn(name),
        reply=Reply(text=name),
        finish_reason=FinishReason.STOP,
        stopped_by=None,
        usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=2, cached_tokens=1),
        version=0,
        sampled_ids=(),
        logprobs=(),
    )


def finished(name: str, *, choices: int = 2, prompt_tokens: int = 3, **more: Any) -> Finished:
    return Finished(
        turn_id=turn(name),
        session_id=turn(name),
        created_at=1.0,
        choices=tuple(ended(name, choice, prompt_tokens) for choice in range(choices)),
        **more,
    )


class Heard:
    """Everything that is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    async def started(self, event: Started) -> None:
        self.told.append(("started", event.turn_id))

    def sampled(self, piece: Piece) -> bool:
        self.told.append((piece.choice, piece.deltas[0].text))
        return piece.choice % 2 == 0

    async def ready(self) -> None:
        self.told.append(("ready",))

    async def ended(self, event: Ended) -> None:
        self.told.append(("ended", event.choice))


async def test_choices_count_on_and_the_first_prompt_opens() -> None:
    waiting = asyncio.Event()
    heard = Heard()

    async def serve(one: TurnRequest, listener: Listener | None) -> Finished:
        assert listener is not None
        if one.model == "a":
            await waiting.wait()
        else:
            # It is further than the first, and is not told of before it.
            asyncio.get_running_loop().call_soon(waiting.set)
        await listener.started(started(one.model))
        assert [listener.sampled(piece(one.model, choice)) for choice in (0, 1)] == [True, False]
        await listener.ready()
        for choice in (1, 0):
            await listener.ended(ended(one.model, choice))
        return finished(one.model)

    found = await serve_each([request("a"), request("b"), request("c")], serve, heard)
    assert heard.told[0] == ("started", turn("a"))
    assert {one for one in heard.told if one[0] == "started"} == {
        ("started", turn(name)) for name in "abc"
    }
    spoken = [one for one in heard.told if isinstance(one[0], int)]
    assert sorted(spoken) == [(0, "a"), (1, "a"), (2, "b"), (3, "b"), (4, "c"), (5, "c")]
    assert sorted(one[1] for one in heard.told if one[0] == "ended") == [0, 1, 2, 3, 4, 5]
    assert heard.told.count(("ready",)) == 3
    assert [(one.choice, one.turn_id) for one in found.choices] == [
        (index, turn(name)) for index, name in enumerate("aabbcc")
    ]
    assert found.turn_id == turn("a")


async def test_each_prompt_is_counted_once_and_each_reply() -> None:
    async def serve(one: TurnRequest, listener: Listener | None) -> Finished:
        assert listener is None
        lengths = {"a": 3, "b": 40}
        captured = one.model == "a"
        return finished(one.model, prompt_tokens=lengths[one.model], captured=captured)

    found = await serve_each([request("a"), request("b")], serve, None)
    assert found.usage == Usage(prompt_tokens=43, completion_tokens=8, cached_tokens=2)
    assert not found.captured
    alone = await serve_each([request("b")], serve, None)
    assert alone.usage == Usage(prompt_tokens=40, completion_tokens=4, cached_tokens=1)


async def test_the_first_that_fails_ends_the_others() -> None:
    begun = asyncio.Event()
    left: list[str] = []

    async def serve(one: TurnRequest, listener: Listener | None) -> Finished:
        if one.model == "b":
            await begun.wait()
            raise EngineUnavailable("gone", engine="e")
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            left.append(one.model)
        raise AssertionError

    with pytest.raises(EngineUnavailable):
        await serve_each([request("a"), request("b"), request("c")], serve, None)
    assert sorted(left) == ["a", "c"]


async def test_what_the_log_says_of_one_prompt_it_does_not_say_of_another() -> None:
    said: dict[str, Any] = {}
    both = asyncio.Barrier(2)

    async def serve(one: TurnRequest, listener: Listener | None) -> Finished:
        bind(turn_id=one.model)
        await both.wait()
        said[one.model] = dict(carried() or {})
        return finished(one.model)

    with request_context(request_id="r"):
        await serve_each([request("a"), request("b")], serve, None)
        assert dict(carried() or {}) == {"request_id": "r"}
    assert said == {name: {"request_id": "r", "turn_id": name} for name in "ab"}


async def test_nothing_is_told_before_every_prompt_has_begun() -> None:
    begun, heard = asyncio.Event(), Heard()

    async def serve(one: TurnRequest, listener: Listener | None) -> Finished:
        assert listener is not None
        if one.model == "a":
            begun.set()
            await listener.started(started("a"))
            listener.sampled(piece("a", 0))
            return finished("a")
        await begun.wait()
        await asyncio.sleep(0)
        raise EngineUnavailable("refused", engine="e")

    with pytest.raises(EngineUnavailable):
        await serve_each([request("a"), request("b")], serve, heard)
    assert heard.told == []
