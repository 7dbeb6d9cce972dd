"""Several prompts of one request: each is served as a call of its own, and told of as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.pipeline.events import Ended, Finished, Listener, Piece, Started
from gateway.pipeline.together import together
from gateway.records import TurnRequest
from gateway.telemetry import own_context

Serve = Callable[[TurnRequest, Listener | None], Coroutine[Any, Any, Finished]]


async def serve_each(
    requests: Sequence[TurnRequest], serve: Serve, listener: Listener | None
) -> Finished:
    """Serve requests of equally many choices side by side; choices count on from one to the next.

    The first error, and being cancelled, ends all of them, as it does the choices of one.
    """
    if len(requests) == 1:
        return await serve(requests[0], listener)
    opened = asyncio.Event()
    works = []
    for index, request in enumerate(requests):
        own = None
        if listener is not None:
            own = _OfPrompt(listener, index * request.choices, opened)
        works.append(_apart(request, serve, own))
    return _gathered(await together(works))


async def _apart(request: TurnRequest, serve: Serve, listener: Listener | None) -> Finished:
    """Serve one of several, which are not to share what the log says of their turns."""
    with own_context():
        return await serve(request, listener)


def _gathered(ended: Sequence[Finished]) -> Finished:
    choices = [choice for one in ended for choice in one.choices]
    return replace(
        ended[0],
        choices=tuple(replace(choice, choice=index) for index, choice in enumerate(choices)),
        captured=all(one.captured for one in ended),
        prompts=len(ended),
    )


class _OfPrompt:
    """Tells `listener` of one prompt, whose first choice has the index `first`.

    The first prompt's turn names the response, so the others are told of once it has `opened`.
    """

    def __init__(self, listener: Listener, first: int, opened: asyncio.Event) -> None:
        self._listener, self._first, self._opened = listener, first, opened

    async def started(self, event: Started) -> None:
        if self._first:
            await self._opened.wait()
        await self._listener.started(event)
        self._opened.set()

    def sampled(self, piece: Piece) -> bool:
        return self._listener.sampled(replace(piece, choice=self._first + piece.choice))

    async def ready(self) -> None:
        await self._listener.ready()

    async def ended(self, event: Ended) -> None:
        await self._listener.ended(replace(event, choice=self._first + event.choice))
