"""What is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from gateway.records.generation import FinishReason
from gateway.records.message import Message
from gateway.records.policy import VersionSpan


class SampleState(StrEnum):
    READY = "ready"
    LEASED = "leased"
    TRAINED = "trained"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleHead:
    """A sample as the schedule sees it, before its ids are loaded.

    `rule` gave the score, None where a judge read. Turns of one `group` answer the same request.
    """

    id: UUID
    turn_id: UUID
    session_id: UUID
    score: float
    version_min: int
    arrived_at: float
    rule: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """What is trained on, exactly as sampled.

    `prompt_ids` [P], `sampled_ids` [R] and `logprobs` [R] (behaviour policy, at `temperature`).
    `user` groups samples for the running baseline. `rule` and `group` are those of the head,
    `reply` what was said, where it is known.
    """

    id: UUID
    turn_id: UUID
    session_id: UUID
    user: str
    score: float
    weight: float
    prompt_ids: Sequence[int]
    sampled_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: tuple[VersionSpan, ...]
    temperature: float
    finish_reason: FinishReason
    arrived_at: float
    rule: str | None = None
    group: str | None = None
    reply: Message | None = None
