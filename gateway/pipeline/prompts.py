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
    opening = _Opening(len(requests))
    works = []
    for index, request in enumerate(requests):
        own = None
        if listener is not None:
            own = _OfPrompt(listener, index, index * request.choices, opening)
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


class _Opening:
    """When several prompts are told of: once all have begun, and the first of them has been.

    What one of them is refused for is the answer then, and no end of a stream. The first prompt's
    turn names the response.
    """

    def __init__(self, prompts: int) -> None:
        self._missing = set(range(prompts))
        self._begun, self._named = asyncio.Event(), asyncio.Event()

    async def wait(self, prompt: int) -> None:
        """Return when a prompt that has begun may be told of."""
        self._missing.discard(prompt)
        if not self._missing:
            self._begun.set()
        await self._begun.wait()
        if prompt:
            await self._named.wait()

    def told(self) -> None:
        """One was told of; before the first there was none."""
        self._named.set()


class _OfPrompt:
    """Tells `listener` of one prompt, whose first choice has the index `first`."""

    def __init__(self, listener: Listener, prompt: int, first: int, opening: _Opening) -> None:
        self._listener, self._opening = listener, opening
        self._prompt, self._first = prompt, first

    async def started(self, event: Started) -> None:
        await self._opening.wait(self._prompt)
        await self._listener.started(event)
        self._opening.told()

    def sampled(self, piece: Piece) -> bool:
        return self._listener.sampled(replace(piece, choice=self._first + piece.choice))

    async def ready(self) -> None:
        await self._listener.ready()

    async def ended(self, event: Ended) -> None:
        await self._listener.ended(replace(event, choice=self._first + event.choice))
