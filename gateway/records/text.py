"""What an engine that speaks in text is asked for and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.records.generation import FinishReason
from gateway.records.reply import Delta, Usage
from gateway.records.request import TurnRequest

FILTERED = "content_filter"
REFUSED = "refusal"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFinish:
    """How a reply ended; `usage` is what the engine counted, None where it does not say.

    `detail` is FILTERED or REFUSED where that is why the reply is not whole.
    """

    reason: FinishReason
    usage: Usage | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChunk:
    """What newly came: the last one carries `finish`. Ids of tool calls are the engine's own."""

    deltas: tuple[Delta, ...] = ()
    finish: TextFinish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextGeneration:
    """One choice of a request, as an engine without token ids is asked for it."""

    request: TurnRequest
    seed: int | None = None
