"""Who may replace an engine's whole weights: one process at a time.

Gateways bring a restarted engine to the live version, a trainer brings it a new one. Two updates
at once end an SGLang server (0.5.23: the second answer finds nobody who waits for it), and a probe
would meet other weights than those that were just loaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol


class Movers(Protocol):
    """`gateway.store.movers.EngineMovers` is the one that processes share."""

    def turn(self, engine: str, wait_s: float = 0.0) -> AbstractAsyncContextManager[bool]:
        """Whether this process alone may replace the weights of an engine until the block ends."""
        ...

    async def under_way(self, engines: Collection[str]) -> frozenset[str]:
        """Which of these engines somebody is at now."""
        ...


class Alone:
    """Movers of a process that shares its engines with no other."""

    @asynccontextmanager
    async def turn(self, engine: str, wait_s: float = 0.0) -> AsyncIterator[bool]:  # noqa: ARG002
        yield True

    async def under_way(self, engines: Collection[str]) -> frozenset[str]:  # noqa: ARG002
        return frozenset()
