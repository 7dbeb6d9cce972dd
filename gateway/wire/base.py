"""What every dialect can do: read a request, and write a reply whole or as a stream.

The frames that end a stream are made apart from the others, so that the pipeline can send them
once the turn is durable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from gateway.config import ServerSettings
from gateway.errors import NextstateError
from gateway.records import Delta, FinishReason, Reply, TurnRequest, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token as clients are shown it: its text, its bytes, its log-probability.

    A sampled one may come with the likeliest tokens at its place.
    """

    text: str
    raw: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class Encoder(Protocol):
    """Writes one response. `choice` counts from 0; log-probabilities only if they were asked for.

    A stream is start, then deltas, then one finish a choice, then end. `stopped_by` is the stop
    string that ended a choice, None where something else did.
    """

    def start(self, prompt_tokens: int = 0) -> bytes: ...

    def delta(self, choice: int, delta: Delta, logprobs: Sequence[TokenLogprob] = ()) -> bytes: ...

    def finish(self, choice: int, reason: FinishReason, stopped_by: str | None = None) -> bytes: ...

    def end(self, usage: Usage) -> bytes: ...

    def comment(self) -> bytes: ...

    def whole(
        self,
        replies: Sequence[Reply],
        finishes: Sequence[FinishReason],
        usage: Usage,
        logprobs: Sequence[Sequence[TokenLogprob]] = (),
        stopped_by: Sequence[str | None] = (),
    ) -> bytes:
        """The response of a request that does not stream."""
        ...

    def error_event(self, error: NextstateError) -> bytes:
        """What a client sees when a stream that has begun cannot go on."""
        ...


class Dialect(Protocol):
    """One protocol that agents speak."""

    @property
    def name(self) -> str: ...

    def parse(self, body: bytes, headers: Mapping[str, str], limits: ServerSettings) -> TurnRequest:
        """Check a request. `headers` have lower-case names. Raises InvalidRequest."""
        ...

    def encoder(
        self, request: TurnRequest, response_id: UUID, created: int, model: str
    ) -> Encoder: ...

    def error(
        self, error: NextstateError, request_id: UUID | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a request that failed."""
        ...
