"""What is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from gateway.records.generation import FinishReason
from gateway.records.judgement import Teaching
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

    `rule` gave the score, None where a judge read. Turns of one `group` answer the same task.
    `taught` is true where a teacher scored its ids, `repeated` where another sample of the same
    turn was trained or comes before it. `delay_s` passed from the reply to its next state.
    """

    id: UUID
    turn_id: UUID
    session_id: UUID
    score: float
    version_min: int
    arrived_at: float
    rule: str | None = None
    group: str | None = None
    taught: bool = False
    repeated: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """What is trained on, exactly as sampled.

    `prompt_ids` [P], `sampled_ids` [R] and `logprobs` [R] (behaviour policy, at `temperature`).
    `user` groups samples for the running baseline. `rule` and `group` are those of the head,
    `depth` is the turn's place in its session, `reply` what was said, where it is known.
    `teaching` is of the latest judgement, where a teacher scored these `sampled_ids` under a hint.
    `kept` [R, any] are the ids that each token was sampled from, where sampling was truncated and
    the engine told them; `logprobs` are then among them.
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
    depth: int = 0
    reply: Message | None = None
    teaching: Teaching | None = None
    kept: Sequence[Sequence[int]] | None = None
