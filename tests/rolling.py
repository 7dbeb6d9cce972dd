"""Agents that talk on while gateways come and go, as through a balancer, for tests of upgrades."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Agents:
    """Each talks in one session after another, of `length` questions, to whichever of `gateways`
    is next.

    One that refuses the connection is passed over, as a balancer does; whatever else goes wrong
    is a failure. `gateways` may change at any time. `asked` counts what was answered in full.
    """

    gateways: list[str]
    key: str
    count: int = 4
    length: int = 16
    asked: int = 0
    sessions: int = 0
    failures: list[str] = field(default_factory=list)
    by_gateway: dict[str, int] = field(default_factory=dict)
    _next: int = 0

    async def talk(self, stop: asyncio.Event) -> None:
        """Until `stop` is set and every question that was asked has its answer."""
        connector = aiohttp.TCPConnector(force_close=True)
        headers = {"authorization": f"Bearer {self.key}"}
        async with (
            aiohttp.ClientSession(headers=headers, connector=connector) as http,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self.count):
                group.create_task(self._talk(http, stop))

    async def until(self, condition: Callable[[], bool], within_s: float = 120) -> None:
        """Wait for something to come about, and no longer than until something fails."""
        async with asyncio.timeout(within_s):
            while not condition():
                assert not self.failures, self.failures
                await asyncio.sleep(0.02)

    async def more(self, count: int) -> None:
        """Wait until so many more questions were answered."""
        wanted = self.asked + count
        await self.until(lambda: self.asked >= wanted)

    async def _talk(self, http: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        while not stop.is_set() and not self.failures:
            number = self.sessions = self.sessions + 1
            said: list[dict[str, Any]] = []
            while not stop.is_set() and len(said) < 2 * self.length:
                said.append({"role": "user", "content": f"{number}: and {len(said)}?"})
                stream = len(said) % 4 == 1
                body = {"model": "tiny", "messages": said, "max_tokens": 8, "stream": stream}
                try:
                    reply = await self._ask(http, f"session-{number}", body)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is looked for
                    self.failures.append(f"{type(error).__name__}: {error}")
                    return
                said.append({"role": "assistant", "content": reply})
                self.asked += 1

    async def _ask(self, http: aiohttp.ClientSession, session: str, body: dict[str, Any]) -> str:
        headers = {"x-session-id": session}
        self._next += 1
        first = self._next % len(self.gateways)
        for url in (*self.gateways[first:], *self.gateways[:first]):
            try:
                async with http.post(
                    f"{url}/v1/chat/completions", json=body, headers=headers
                ) as answer:
                    text = await answer.text()
                    assert answer.status == 200, f"{answer.status}: {text}"
            except aiohttp.ClientConnectorError:
                continue
            self.by_gateway[url] = self.by_gateway.get(url, 0) + 1
            return _streamed(text) if body["stream"] else _whole(text)
        raise AssertionError("no gateway takes connections")


def _whole(text: str) -> str:
    return str(json.loads(text)["choices"][0]["message"]["content"])


def _streamed(text: str) -> str:
    # A comment fills a long silence.
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", text
    parts = [json.loads(event)["choices"][0]["delta"].get("content") for event in events[:-1]]
    return "".join(part for part in parts if part)
