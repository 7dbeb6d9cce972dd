"""What every engine can do. Fakes and real engines pass `tests/contract/test_engine.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gateway.records import Chunk, Generation, Media, PolicyRef, TextChunk, TextGeneration


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """What an engine says of itself now.

    `adapters` are the names it has loaded (`PolicyRef.adapter`). While it is `paused` new requests
    wait there. Where sampling is cut to at most `kept_most` ids, it can tell which.
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
    paused: bool = False
    kept_most: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Log-probabilities [R] of given ids at temperature 1, and of others in their places [R, K]."""

    logprobs: tuple[float, ...]
    top_ids: tuple[tuple[int, ...], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()


#: Takes a chunk as it arrives; whether the next may come in the same way.
Take = Callable[[Chunk], bool]


class Chunks(Protocol):
    """A generation as it is sampled: an async generator, or what costs less than one.

    It begins as the first chunk is waited for, and is over with the last and with any error.
    """

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    def __anext__(self) -> Awaitable[Chunk]: ...

    def asend(self, take: Take | None, /) -> Awaitable[Chunk]:
        """The next chunk, or of an engine that can the next that `take` was not given."""
        ...

    def aclose(self) -> Awaitable[None]:
        """Abort what still runs. Closing twice is no error."""
        ...


class Engine(Protocol):
    """One inference server.

    Every method raises EngineUnavailable, EngineTimeout, EngineOverloaded or EngineRejected, and
    nothing else, when the engine fails.
    """

    @property
    def name(self) -> str: ...

    def generate(self, request: Generation) -> Chunks:
        """Sample a continuation; chunks as they are sampled, the last one with `finish`.

        Of an engine that can, a function that is sent in is given the chunks that follow at the
        moment they arrive: what is yielded next is then the last one, or an empty one after the
        function said that it can take no more. Others yield every chunk.

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

    async def likeliest(
        self, ids: Sequence[int], start: int, policy: PolicyRef, top: int
    ) -> Scored:
        """`score`, and the `top` likeliest tokens (at least 1) in each place, likeliest first."""
        ...

    async def score_among(
        self, ids: Sequence[int], start: int, policy: PolicyRef, among: Sequence[Sequence[int]]
    ) -> Scored:
        """`score`, and the values of the ids `among` [len(ids) - start, K] in each place."""
        ...

    async def load(self, policy: PolicyRef) -> float:
        """Bring a version's weights in beside those that serve; the milliseconds it took.

        Loading what is loaded already is no error.
        """
        ...

    async def unload(self, policy: PolicyRef) -> None:
        """Drop a version that no request uses. Unloading what is not there is no error."""
        ...

    async def restore(self, policy: PolicyRef) -> float:
        """`load` a whole version anew, whatever the engine says that it has; the milliseconds."""
        ...

    async def resume(self) -> None:
        """Go on where a replacement of whole weights was left in the middle of."""
        ...

    async def disown(self) -> None:
        """Say of no version any more that it is served: nobody knows what the weights are."""
        ...

    async def checksum(self) -> str | None:
        """Of all weights as they are in memory; None where the engine tells none."""
        ...

    async def status(self) -> EngineStatus: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that weights are broadcast to; rank 0, at `address` and `port`, is who has them."""

    name: str
    address: str
    port: int
    size: int
    backend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Tensors that are broadcast one after the other: Hugging Face names, dtypes and shapes."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@runtime_checkable
class Receiver(Protocol):
    """An engine that takes whole weights by broadcast. Every method raises EngineError."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    async def ranks(self) -> int:
        """How many of its processes hold weights."""
        ...

    async def join(self, group: Group) -> None:
        """Become ranks 1 and up; waits for rank 0. EngineRejected where that cannot be."""
        ...

    async def receive(
        self,
        policy: PolicyRef,
        group: Group,
        buckets: Sequence[Bucket],
        send: Callable[[int], Awaitable[None]],
    ) -> float:
        """Replace the weights by what `send` gives of each bucket; the milliseconds."""
        ...

    async def leave(self, group: Group) -> None:
        """Give a group up. One that it is not in is no error."""
        ...


class TextEngine(Protocol):
    """A server that gives text and no ids: what it says can be judged, never trained on.

    Every method raises EngineUnavailable, EngineTimeout, EngineOverloaded or EngineRejected (the
    request's own fault, in the server's words), and nothing else, when the engine fails.
    """

    @property
    def name(self) -> str: ...

    def takes(self, media: Sequence[Media]) -> bool:
        """Whether it can be shown all of these."""
        ...

    def generate(self, request: TextGeneration) -> AsyncGenerator[TextChunk, None]:
        """Stream a reply, the last chunk with `finish`. Closing the iterator early aborts it."""
        ...

    async def status(self) -> EngineStatus: ...

    async def close(self) -> None: ...
