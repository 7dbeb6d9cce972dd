"""What a served request tells whoever encodes it, in the order in which it happens.

    Started → (Piece | Ended)… → Finished

`Ended` comes once a choice, `Finished` once, and each only when what it tells of is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from gateway.records import Delta, FinishReason, Ranked, Reply, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine samples; nothing before this point has reached the client.

    `turn_id` is that of the first choice and names the response, which is as old as its turns
    (`created_at`, seconds). The engine was given `prompt_tokens` ids.
    """

    turn_id: UUID
    session_id: UUID
    created_at: float
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one chunk of sampled tokens adds: `ids` [n] and `logprobs` [n], and what shows.

    `top` [n] are the likeliest tokens at each place, if the client asked for them.
    """

    deltas: tuple[Delta, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[Ranked, ...] = ()
    choice: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A choice whose turn is durable. `logprobs` [R] and `top` [R] are of the `sampled_ids` [R].

    `stopped_by` is the stop string that ended the reply, if one did.
    """

    choice: int
    turn_id: UUID
    reply: Reply
    finish_reason: FinishReason
    stopped_by: str | None
    usage: Usage
    version: int | None
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[Ranked, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Every turn is durable: the client may see the end. `choices` in the order of their index."""

    turn_id: UUID
    session_id: UUID
    created_at: float
    choices: tuple[Ended, ...]

    @property
    def usage(self) -> Usage:
        """The prompt counts once, every choice's reply: as the OpenAI API sums it."""
        first = self.choices[0].usage
        return Usage(
            prompt_tokens=first.prompt_tokens,
            completion_tokens=sum(choice.usage.completion_tokens for choice in self.choices),
            cached_tokens=first.cached_tokens,
        )


Event = Started | Piece | Ended | Finished
