"""What is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from gateway.records.generation import FinishReason
from gateway.records.policy import VersionSpan


class SampleState(StrEnum):
    READY = "ready"
    LEASED = "leased"
    TRAINED = "trained"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleHead:
    """A sample as the schedule sees it, before its ids are loaded."""

    id: UUID
    turn_id: UUID
    session_id: UUID
    score: float
    version_min: int
    arrived_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """What is trained on, exactly as sampled.

    `prompt_ids` [P], `sampled_ids` [R] and `logprobs` [R] (behaviour policy, at `temperature`).
    `user` groups samples for the running baseline.
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
