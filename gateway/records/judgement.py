"""Judging jobs and their results."""

from __future__ import annotations

from collections.abc import Mapping
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

    `request` are the messages new in the turn, `next_state` every message that followed the reply.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A judge's result. `score` in [-1, 1], None where nothing could be said."""

    judge: str
    score: float | None
    rule: str | None = None
    confidence: float | None = None
    reason: str | None = None
    votes: tuple[Mapping[str, Any], ...] = ()
    hint: str | None = None
