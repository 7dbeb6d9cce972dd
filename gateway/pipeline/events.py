"""What a served request tells whoever encodes it, in the order in which it happens.

    Started → (Piece | Ended)… → Finished

A `Listener` is told of the first three while they happen; `Finished` is what serving comes to.
`Ended` comes once a choice, and it and `Finished` only when what they tell of is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from gateway.records import Delta, FinishReason, Ranked, Reply, Usage


class Started(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An engine samples; nothing before this point has reached the client. Told once a choice.

    `turn_id` is that of the first choice and names the response, which is as old as its turns
    (`created_at`, seconds). The engine was given `prompt_tokens` ids. Nothing is stored of a call
    that is not `captured`.
    """

    turn_id: UUID
    session_id: UUID
    created_at: float
    prompt_tokens: int
    captured: bool = True


class Piece(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one chunk of sampled tokens adds: `ids` [n] and `logprobs` [n], and what shows.

    `top` [n] are the likeliest tokens at each place, if the client asked for them; `kept` [n, any]
    the ids that each was sampled from, where they are known.
    """

    deltas: tuple[Delta, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[Ranked, ...] = ()
    kept: tuple[Sequence[int], ...] = ()
    choice: int = 0


class Ended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class Finished(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Every turn is durable: the client may see the end. `choices` in the order of their index.

    Where a request has several `prompts` each has equally many choices, one prompt after the other,
    and turn and session are the first one's.
    """

    turn_id: UUID
    session_id: UUID
    created_at: float
    choices: tuple[Ended, ...]
    captured: bool = True
    prompts: int = 1

    @property
    def usage(self) -> Usage:
        """A prompt counts once, every choice's reply: as the OpenAI API sums it."""
        if len(self.choices) == 1:
            return self.choices[0].usage
        firsts = self.choices[:: len(self.choices) // self.prompts]
        return Usage(
            prompt_tokens=sum(choice.usage.prompt_tokens for choice in firsts),
            completion_tokens=sum(choice.usage.completion_tokens for choice in self.choices),
            cached_tokens=sum(choice.usage.cached_tokens for choice in firsts),
            reasoning_tokens=sum(choice.usage.reasoning_tokens for choice in self.choices),
        )


class Listener(Protocol):
    """Who is told of a turn as it is sampled. A choice goes on when its listener is ready.

    What is raised here ends the turn as a client that leaves does.
    """

    async def started(self, event: Started) -> None: ...

    def sampled(self, piece: Piece) -> bool:
        """Told at the moment a piece arrives; whether the next may come before it is `ready`."""
        ...

    async def ready(self) -> None:
        """Return when more can be taken."""
        ...

    async def ended(self, event: Ended) -> None: ...
