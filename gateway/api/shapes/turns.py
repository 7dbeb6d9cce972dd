"""Turns, and what became of them. Words are left out where the asker wants none."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from gateway.api.shapes.base import Next, Open, Shape, Time

Kind = Literal["main", "side", "unknown"]
Outcome = Literal["trained", "dropped", "untrainable", "unscored"]


class NextState(Shape):
    """What followed the reply."""

    following_id: UUID
    role: str
    messages: list[Any] = Field(default_factory=list)
    arrived_at: Time


class Judgement(Shape):
    """A round of judging; negative rounds are an independent judge's."""

    round: int
    state: Literal["queued", "leased", "done", "skipped", "dead"]
    attempts: int
    judge: str | None
    rule: str | None
    score: float | None
    confidence: float | None
    reason: str | None = None
    votes: list[Any] = Field(default_factory=list)
    hint: str | None = None
    done_at: Time | None


class Feedback(Shape):
    id: UUID
    score: float
    text: str = ""
    source: str
    created_at: Time


class Sample(Shape):
    """The turn as training data."""

    id: UUID
    method: str
    score: float
    weight: float
    state: Literal["ready", "leased", "trained", "dropped"]
    reason: str | None
    step_id: UUID | None
    version_lag: int | None


class Verdict(Shape):
    """How the turn ended."""

    outcome: Outcome
    reason: str
    step_id: UUID | None
    version: int | None


class Turn(Shape):
    """One reply; `messages` are those that were new, `spans` [version, start, end]."""

    id: UUID
    session_id: UUID
    lineage_id: UUID
    parent_id: UUID | None
    depth: int
    branch_reason: str | None
    retry_of: UUID | None
    kind: Kind
    kind_rule: str
    kind_confidence: float
    resolve_rule: str
    dialect: str
    model: str
    engine: str
    message_count: int
    messages: list[Any] = Field(default_factory=list)
    reply: Open = Field(default_factory=dict)
    prompt_len: int
    shared_len: int
    completion_len: int
    spans: list[list[int]]
    version_min: int | None
    version_max: int | None
    sampling: Open
    finish_reason: Literal["stop", "length", "tool_calls", "abort"]
    finish_detail: str | None
    trainable: bool
    untrainable_reason: str | None
    stream_mismatch: bool
    cached_tokens: int
    queued_ms: float
    first_token_ms: float | None
    total_ms: float
    created_at: Time
    next_state: NextState | None
    judgements: list[Judgement]
    feedback: list[Feedback]
    samples: list[Sample]
    verdict: Verdict | None


class FullTurn(Turn):
    """A turn; ids, log-probabilities and `tokens`, their texts, where they were asked for."""

    prompt_ids: list[int] = Field(default_factory=list)
    sampled_ids: list[int] = Field(default_factory=list)
    logprobs: list[float | None] = Field(default_factory=list)
    teacher: str | None = None
    teacher_logprobs: list[float | None] | None = None
    tokens: list[str] = Field(default_factory=list)


class TurnHead(Shape):
    """What a list tells of a turn; `score` is that of the last round."""

    id: UUID
    session_id: UUID
    parent_id: UUID | None
    kind: Kind
    client: str
    end_user: str | None
    version_min: int | None
    version_max: int | None
    prompt_len: int
    completion_len: int
    finish_reason: str
    trainable: bool
    untrainable_reason: str | None
    score: float | None
    rule: str | None
    outcome: Outcome | None
    verdict_reason: str | None
    created_at: Time


class TurnPage(Shape):
    items: list[TurnHead]
    next: Next


class Explained(Shape):
    """The decisions about a turn: how it was placed, what it was taken for, and what came of it.

    `number` counts the turns of its session; `parent` and `retry_of` are numbers too, or ids of
    turns elsewhere.
    """

    id: UUID
    session_id: UUID
    number: int
    parent: int | UUID | None
    retry_of: int | UUID | None
    depth: int
    resolve_rule: str
    branch_reason: str | None
    kind: Kind
    kind_rule: str
    confidence: float
    delivered: bool
    prompt_len: int
    shared_len: int
    finish_reason: str
    finish_detail: str | None
    trainable: bool
    untrainable_reason: str | None
    new_messages: int | None
    next_role: str | None
    next_how: str | None
    outcome: Outcome | None
    reason: str | None
    created_at: Time
