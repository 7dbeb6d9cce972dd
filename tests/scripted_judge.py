"""An OpenAI-compatible endpoint whose answers a test scripts. It says what it was asked."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

#: The decoded request in, the text of the answer out; an int is a status to refuse with.
Script = Callable[[dict[str, Any]], str | int]

_CHECK = re.compile(r"check word is ([0-9a-f]{8})\.")


def check_word(body: dict[str, Any]) -> str:
    """The check word of a question."""
    found = _CHECK.search(body["messages"][-1]["content"])
    assert found is not None
    return found[1]


def grading(score: object) -> Script:
    """Always this score, in the form asked for."""
    return lambda body: json.dumps({"check": check_word(body), "why": "because", "score": score})


class ScriptedJudge:
    """Use as an async context manager; `url` is the base URL for a client.

    With `together`, nobody is answered until so many have asked; `before` is awaited first.
    """

    def __init__(self, script: Script, *, together: int = 1) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.hang = False
        self.refuses_schema = False
        self.before: Callable[[dict[str, Any]], Awaitable[None]] | None = None
        self.running = self.most_running = 0
        self._together = asyncio.Barrier(together)
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", self._complete)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await (asyncio.sleep(3600) if self.hang else self._together.wait())
        finally:
            self.running -= 1
        if self.before is not None:
            await self.before(body)
        if self.refuses_schema and "response_format" in body:
            return _refusal(400)
        answer = self.script(body)
        if isinstance(answer, int):
            return _refusal(answer)
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": answer},
        }
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [choice],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
            }
        )


def _refusal(status: int) -> web.Response:
    return web.json_response({"error": {"message": "no"}}, status=status)
