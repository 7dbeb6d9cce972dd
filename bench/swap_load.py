"""Agents that stream from a gateway without a pause while versions change, and what each saw."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

#: What the gateway calls the model.
NAME = "tiny"
TOKENS = 24
#: What the baseline's clients wait before they ask again.
RETRY_S = 0.25
#: Turns of one conversation: prefixes that were computed by one version are met by the next.
TURNS = 4


@dataclass(slots=True)
class Reply:
    """One request, as its client saw it; times are of the monotonic clock.

    `turn` is what the gateway calls it, `parts` when each piece came, `tokens` how many there are
    by the gateway's count. `why` is what was wrong with one that `failed`.
    """

    began: float
    ended: float = 0.0
    turn: str = ""
    parts: list[float] = field(default_factory=list)
    tokens: int = 0
    reason: str | None = None
    text: str = ""
    plain: bool = True
    why: str | None = None

    @property
    def failed(self) -> bool:
        return self.why is not None

    @property
    def truncated(self) -> bool:
        """Whether it ended without its stop token and before its limit."""
        if self.failed or self.reason in ("stop", "tool_calls"):
            return False
        return self.reason != "length" or self.tokens != TOKENS

    @property
    def complete(self) -> bool:
        """Whether it is of the length by which latencies are compared."""
        return not self.failed and self.tokens == TOKENS


class Agents:
    """A closed loop: each asks again as soon as it is answered, and none tries twice.

    With `shut` set, requests are refused, as by a server that answers 503 until it is done.
    """

    def __init__(self, url: str, key: str, count: int) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=300),
        )
        self.replies: list[Reply] = []
        self.running = 0
        self.shut = asyncio.Event()
        self._enough = asyncio.Event()
        self._tasks = [asyncio.create_task(self._agent(number)) for number in range(count)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._enough.set()
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await self._http.close()

    async def served(self, count: int) -> None:
        """Wait until so many more requests have ended."""
        goal = len(self.replies) + count
        await self.until(lambda: len(self.replies) >= goal)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(300):
            while not condition():
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.005)

    async def _agent(self, number: int) -> None:
        for conversation in itertools.count():
            # Sessions share a beginning, so that a stale prefix would be found.
            messages = [{"role": "system", "content": "You are a helpful assistant."}]
            for turn in range(TURNS):
                if self._enough.is_set():
                    return
                words = f"agent {number}, conversation {conversation}, turn {turn}"
                messages.append({"role": "user", "content": words})
                reply = await self._asked(messages, f"agent-{number}-{conversation}")
                self.replies.append(reply)
                if reply.failed or not reply.plain:
                    break
                messages.append({"role": "assistant", "content": reply.text})

    async def _asked(self, messages: list[dict[str, str]], session: str) -> Reply:
        reply = Reply(time.monotonic())
        if self.shut.is_set():
            reply.why = "refused"
            await asyncio.sleep(RETRY_S)
        else:
            self.running += 1
            try:
                await self._streamed(reply, messages, session)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                reply.why = f"{type(error).__name__}: {error}"
            finally:
                self.running -= 1
        reply.ended = time.monotonic()
        return reply

    async def _streamed(self, reply: Reply, messages: list[dict[str, str]], session: str) -> None:
        """Raises what aiohttp does."""
        body = {
            "model": NAME,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": TOKENS,
            "temperature": 1.0,
        }
        headers = {"X-Session-Id": session}
        async with self._http.post(self._url, json=body, headers=headers) as response:
            if response.status != 200:
                reply.why = f"{response.status}: {(await response.text())[:200]}"
                return
            reply.turn = response.headers["x-nextstate-turn-id"]
            done = False
            async for event in _events(response):
                if event is None:
                    done = True
                else:
                    _take(reply, event)
            if not done and not reply.failed:
                reply.why = "the stream ended without its last event"


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any] | None]:
    """The events of a stream, None for the one that says it is done."""
    async for line in response.content:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            yield None if data == b"[DONE]" else json.loads(data)


def _take(reply: Reply, event: dict[str, Any]) -> None:
    if "error" in event:
        reply.why = json.dumps(event["error"])
        return
    if usage := event.get("usage"):
        reply.tokens = usage["completion_tokens"]
    for choice in event.get("choices", ()):
        delta = choice["delta"]
        if set(delta) - {"role", "content"}:
            reply.plain = False
        if delta.get("content"):
            reply.parts.append(time.monotonic())
            reply.text += delta["content"]
        reply.reason = choice.get("finish_reason") or reply.reason
