"""Judging jobs and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from gateway.records.generation import FinishReason
from gateway.records.message import Message
from gateway.records.request import TurnKind
from gateway.records.turn import FeedbackRecord


class JobState(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    SKIPPED = "skipped"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeJob:
    """A claimed judging job with all that a judge may see.

    `request` are the messages new in the turn, `next_state` every message that followed the reply,
    or, where `how` is `rolled_back`, what the user said instead after discarding it.
    """

    turn_id: UUID
    round: int
    tenant_id: UUID
    session_id: UUID
    lineage_id: UUID
    kind: TurnKind
    attempts: int
    request: tuple[Message, ...]
    reply: Message
    next_state: tuple[Message, ...]
    feedback: tuple[FeedbackRecord, ...]
    finish_reason: FinishReason
    trainable: bool
    untrainable_reason: str | None
    version_min: int | None
    arrived_at: float
    how: str = "continued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A judge's result. `score` in [-1, 1], None where nothing could be said.

    `usage` is what it took: calls, tokens, USD and milliseconds of the endpoint, the teacher's
    part, and why there is no teaching where one was due.
    """

    judge: str
    score: float | None
    rule: str | None = None
    confidence: float | None = None
    reason: str | None = None
    votes: tuple[Mapping[str, Any], ...] = ()
    hint: str | None = None
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a teacher needs of a turn: the conversation up to its reply, and the ids as they were.

    `messages` is the whole conversation, `prompt_ids` [P] what the engine saw, `sampled_ids` [R]
    what it sampled.
    """

    turn_id: UUID
    lineage_id: UUID
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    prompt_ids: Sequence[int]
    sampled_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """What a teacher that was given the hint says of a turn's sampled ids [R], at temperature 1.

    `logprobs` [R] in nats. `top_ids` and `top_logprobs` [R, K] are tokens and the teacher's values
    for them, empty without; what they leave of 1 is the tail's mass. `teacher` is base, fixed or
    live; `version` is its version in the lineage, None of a fixed model. `prompt_len` is the length
    of the hinted prompt.
    """

    teacher: str
    lineage_id: UUID | None
    version: int | None
    model: str
    hint: str
    prompt_len: int
    logprobs: Sequence[float]
    top_ids: Sequence[Sequence[int]] = ()
    top_logprobs: Sequence[Sequence[float]] = ()
