"""What every engine can do. Fakes and real engines pass `tests/contract/test_engine.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.records import Chunk, Generation, PolicyRef, TextChunk, TextGeneration


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """What an engine says of itself now.

    `adapters` are the names it has loaded (`PolicyRef.adapter`).
    """

    ready: bool
    model: str = ""
    context_length: int | None = None
    vocab_size: int | None = None
    weight_version: str | None = None
    adapters: frozenset[str] = frozenset()
    running: int = 0
    queued: int = 0
    max_total_tokens: int | None = None
    supports_lora: bool = False


class Engine(Protocol):
    """One inference server.

    Every method raises EngineUnavailable, EngineTimeout, EngineOverloaded or EngineRejected, and
    nothing else, when the engine fails.
    """

    @property
    def name(self) -> str: ...

    def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        """Sample a continuation; chunks as they are sampled, the last one with `finish`.

        The ids and log-probabilities of all chunks together are what was sampled, the stop token
        included. Log-probabilities are of the distribution sampled from (at the request's
        temperature). Closing the iterator early aborts the request in the engine.
        """
        ...

    async def score(self, ids: Sequence[int], start: int, policy: PolicyRef) -> list[float]:
        """Log-probabilities of ids[start:] given what precedes each, at temperature 1.

        Shape [len(ids) - start]; `start` is at least 1.
        """
        ...

    async def load(self, policy: PolicyRef) -> float:
        """Bring a version's weights in beside those that serve; the milliseconds it took.

        Loading what is loaded already is no error.
        """
        ...

    async def unload(self, policy: PolicyRef) -> None:
        """Drop a version that no request uses. Unloading what is not there is no error."""
        ...

    async def status(self) -> EngineStatus: ...

    async def close(self) -> None: ...


class TextEngine(Protocol):
    """A server that gives text and no ids: what it says can be judged, never trained on.

    Every method raises EngineUnavailable, EngineTimeout, EngineOverloaded or EngineRejected (the
    request's own fault, in the server's words), and nothing else, when the engine fails.
    """

    @property
    def name(self) -> str: ...

    def generate(self, request: TextGeneration) -> AsyncGenerator[TextChunk, None]:
        """Stream a reply, the last chunk with `finish`. Closing the iterator early aborts it."""
        ...

    async def status(self) -> EngineStatus: ...

    async def close(self) -> None: ...
