"""The load: so many connections, each with one request under way, bounded in count and time."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.conversations import Conversation
from bench.http_client import Connection, post

#: The first chunk that says something: the one before it only opens the message.
_CONTENT = re.compile(rb'"content":\s*"[^"]')
_LONGEST_S = 60.0


class LoadFailed(RuntimeError):
    """A reply that should have been a completion was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go."""

    host: str = "127.0.0.1"
    port: int
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Seen:
    """What the clients saw: milliseconds of each request, to its first words and to its end."""

    latencies_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)


async def closed_loop(
    target: Target,
    conversations: Sequence[Conversation],
    connections: int,
    *,
    turns: int,
    within_s: float = _LONGEST_S,
) -> Seen:
    """Take every conversation `turns` requests further, or to its end; one connection each.

    Raises LoadFailed at the first reply that is no completion, and after `within_s`.
    """
    seen = Seen()
    waiting = iter(conversations)
    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            for _ in range(min(connections, len(conversations))):
                group.create_task(_client(target, waiting, turns, seen))
    except TimeoutError:
        raise LoadFailed(f"not finished after {within_s:.0f} s") from None
    except ExceptionGroup as failed:
        raise LoadFailed(str(failed.exceptions[0])) from failed.exceptions[0]
    return seen


async def _client(target: Target, waiting: Iterator[Conversation], turns: int, seen: Seen) -> None:
    connection = await Connection.open(target.host, target.port)
    try:
        for conversation in waiting:
            for _ in range(turns):
                if conversation.done:
                    break
                if not connection.alive:
                    connection = await Connection.open(target.host, target.port)
                await _ask(connection, target, conversation, seen)
    finally:
        connection.close()


async def _ask(
    connection: Connection, target: Target, conversation: Conversation, seen: Seen
) -> None:
    message = post(target.path, dict(target.headers), conversation.body())
    parts: list[bytes] = []
    first: list[float] = []

    def heard(part: bytes) -> None:
        parts.append(part)
        if not first and _CONTENT.search(part):
            first.append(time.perf_counter())

    started = time.perf_counter()
    status = await connection.exchange(message, heard)
    ended = time.perf_counter()
    reply = b"".join(parts)
    if status != 200 or not first:
        raise LoadFailed(f"status {status}: {reply[:300].decode(errors='replace')}")
    seen.latencies_ms.append((ended - started) * 1e3)
    seen.first_ms.append((first[0] - started) * 1e3)
    conversation.hear(reply)
