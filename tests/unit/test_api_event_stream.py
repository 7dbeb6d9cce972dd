"""A streamed reply is never silent for long; the clock here is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.api import event_stream
from gateway.api.exchange import Exchange
from gateway.api.streamed import StreamedReply
from gateway.config import ServerSettings, Settings
from gateway.records import Sampling, TurnRequest, new_id
from gateway.wire.openai_chat import OpenAIChat
from gateway.wire.sse import COMMENT


class Clock:
    """What a stream asks of the event loop, with a time of its own. It has one timer."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timer: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        assert self._timer is None
        self._timer = self.now + delay, callback
        return SimpleNamespace(cancel=lambda: None)

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> Any:
        """Nothing here waits, so that it is done at once."""
        with pytest.raises(StopIteration):
            coroutine.send(None)
        return SimpleNamespace(done=lambda: True, cancel=lambda: None)

    def pass_to(self, time: float) -> None:
        while self._timer is not None and self._timer[0] <= time:
            (self.now, callback), self._timer = self._timer, None
            callback()
        self.now = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    loop = SimpleNamespace(get_running_loop=lambda: found)
    monkeypatch.setattr(event_stream, "asyncio", loop)
    return found


def test_silence_is_filled_after_15_seconds_where_no_setting_says_otherwise(clock: Clock) -> None:
    assert ServerSettings().keepalive_comment_s == 15
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        raise AssertionError("nothing is read here")

    services: Any = SimpleNamespace(settings=Settings())
    request = TurnRequest(dialect="openai_chat", model="m", messages=(), sampling=Sampling())
    exchange = Exchange({}, receive, send, new_id(), None, None)
    reply = StreamedReply(services, OpenAIChat(), exchange, request)

    def comments() -> int:
        return b"".join(sent).count(COMMENT)

    clock.pass_to(1014.9)
    assert (comments(), exchange.begun) == (0, False)
    clock.pass_to(1015)
    assert (comments(), exchange.begun) == (1, True)
    clock.pass_to(1029.9)
    assert comments() == 1
    clock.pass_to(1030)
    assert comments() == 2
    # What is said puts off the next comment.
    clock.pass_to(1040)
    reply._stream.write(b"data: x\n\n")
    clock.pass_to(1054.9)
    assert comments() == 2
    clock.pass_to(1055)
    assert comments() == 3
