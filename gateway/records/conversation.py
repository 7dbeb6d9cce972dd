"""A stored turn together with all that was said before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gateway.records.generation import FinishReason, Ranked
from gateway.records.message import Message
from gateway.records.reply import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """What one turn added to a conversation: `messages`, then `reply`."""

    turn_id: UUID
    messages: tuple[Message, ...]
    reply: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A turn as its client knows it. `turns` lead from the first to the turn itself.

    `sampling` holds what was set, by the names of `Sampling`; `response_fields` what its request
    said for this (None where nothing is stored of it). `sampled_ids` [R], `logprobs` [R] and `top`
    [R, any] are there where the client asked for log-probabilities.
    """

    turn_id: UUID
    model: str
    created_at: float
    finish_reason: FinishReason
    sampling: Mapping[str, Any]
    tools: tuple[Mapping[str, Any], ...]
    usage: Usage
    turns: tuple[Exchanged, ...]
    response_fields: Mapping[str, Any] | None = None
    sampled_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    top: Sequence[Ranked] = ()

    @property
    def reply(self) -> Message:
        return self.turns[-1].reply

    @property
    def messages(self) -> tuple[Message, ...]:
        """Everything that was said, the reply included."""
        return tuple(message for turn in self.turns for message in (*turn.messages, turn.reply))
