"""Work that is of use only while its client is there."""

from __future__ import annotations

import asyncio
from types import TracebackType

from gateway.api.exchange import ClientLeft, Exchange

#: How soon it matters that a client has gone.
_LOOK_S = 0.1


class WhileThere:
    """What is done inside is cancelled when the client goes, and raises ClientLeft then.

    The server's own word is taken where it gives one. Else `left` returns then, and as most replies
    are there before it is worth a task of its own, it looks a little later.
    """

    _timer: asyncio.TimerHandle | None = None
    _task: asyncio.Task[None] | None = None
    _gone = False

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._direct = exchange, exchange.direct
        serving = asyncio.current_task() if self._direct is None else self._direct.serving
        assert serving is not None
        self._serving = serving

    def __enter__(self) -> None:
        direct = self._direct
        if direct is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
            return
        direct.on_left = self._cancel
        if direct.disconnected:
            self._cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._direct is not None:
            self._direct.on_left = None
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.remove_done_callback(self._leave)
            self._task.cancel()
        cancelled = isinstance(error, asyncio.CancelledError)
        if cancelled and self._gone and not self._serving.uncancel():
            raise ClientLeft from None

    def _look(self) -> None:
        self._task = asyncio.create_task(self._exchange.left())
        self._task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[None]) -> None:
        # Serving waits inside its work now, and nothing else can end it before it is cancelled.
        if not task.cancelled() and task.exception() is None:
            self._cancel()

    def _cancel(self) -> None:
        self._gone = self._serving.cancel()
