"""An OpenAI-compatible server whose replies a test writes."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

from aiohttp import web

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 5,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def says(*parts: str, reason: str = "stop") -> list[dict[str, Any]]:
    """A reply in so many deltas, with its finish."""
    return [{"content": part} for part in parts] + [{"finish": reason}]


class FakeOpenAI:
    """Start with `async with FakeOpenAI() as fake`. Replies are used up in order.

    `requests` keeps the decoded bodies, `keys` what was sent as a key, and `dropped` counts
    streams whose client left.
    """

    def __init__(self) -> None:
        self.replies: deque[Sequence[dict[str, Any]]] = deque()
        self.refuse: deque[tuple[int, Any]] = deque()
        self.delay_s = 0.0
        self.hang = False
        self.whole = False
        self.usage = True
        self.done = True
        self.die_after: int | None = None
        self.lists_models = True
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.dropped = 0
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._complete),
                web.get("/v1/models", self._models),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        if not self.lists_models:
            return web.json_response({"error": "not here"}, status=404)
        return web.json_response({"object": "list", "data": []})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        if self.refuse:
            status, body = self.refuse.popleft()
            return web.json_response(body, status=status)
        if self.hang:
            await asyncio.sleep(3600)
        reply = self.replies.popleft()
        return self._answer(reply) if self.whole else await self._stream(request, reply)

    def _answer(self, reply: Sequence[dict[str, Any]]) -> web.Response:
        message = {"role": "assistant"} | {
            name: value for part in reply for name, value in part.items() if name != "finish"
        }
        choice = {"index": 0, "message": message, "finish_reason": reply[-1]["finish"]}
        return web.json_response({"choices": [choice], "usage": USAGE})

    async def _stream(
        self, request: web.Request, reply: Sequence[dict[str, Any]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": a comment\r\n\r\n")
        try:
            for number, part in enumerate(reply):
                if number == self.die_after:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                await asyncio.sleep(self.delay_s)
                finish = part.get("finish")
                choice = {
                    "index": 0,
                    "delta": {} if finish else part,
                    "finish_reason": finish,
                }
                await response.write(_event({"choices": [choice], "usage": None}))
            if self.usage:
                await response.write(_event({"choices": [], "usage": USAGE}))
            if self.done:
                await response.write(b"data: [DONE]\r\n\r\n")
        except (asyncio.CancelledError, ConnectionResetError):
            self.dropped += 1
            raise
        return response


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\r\n\r\n"
