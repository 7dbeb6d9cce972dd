"""Scores, versions, steps and swaps."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from gateway.api.shapes.base import Next, Open, Shape, Time


class Policy(Shape):
    """A version; `gate` is how it compares with the one before, by the turns of both."""

    lineage_id: UUID
    lineage: str
    version: int
    parent_version: int | None
    kind: Literal["base", "lora", "full"]
    uri: str | None
    checksum: str | None
    state: Literal["candidate", "canary", "live", "retired", "rolled_back", "refused"]
    reason: str | None
    step_id: UUID | None
    created_at: Time
    live_at: Time | None
    ended_at: Time | None
    gate: Open | None


class Policies(Shape):
    items: list[Policy]
    next: Next


class TrainStep(Shape):
    """One step; `metrics` are the trainer's figures, by name."""

    id: UUID
    lineage_id: UUID
    epoch: int
    from_version: int
    to_version: int
    metrics: Open
    samples: int
    lag_max: int | None
    started_at: Time
    ended_at: Time


class TrainSteps(Shape):
    items: list[TrainStep]
    next: Next


class Swap(Shape):
    id: UUID
    lineage_id: UUID
    engine: str
    from_version: int
    to_version: int
    outcome: str
    detail: str | None
    load_ms: float | None
    pause_ms: float | None
    probe_max_diff: float | None
    started_at: Time
    ended_at: Time


class Swaps(Shape):
    items: list[Swap]
    next: Next


class Event(Shape):
    id: int
    at: Time
    name: str
    detail: Open


class Events(Shape):
    items: list[Event]
    next: Next


class ScoreGroup(Shape):
    """Scores of one key; `low` and `high` bound the mean's 95 % interval."""

    key: int | str | None
    lineage_id: UUID
    lineage: str | None
    n: int
    mean: float
    low: float | None
    high: float | None
    negative: int
    neutral: int
    positive: int


class Scores(Shape):
    by: str
    items: list[ScoreGroup]
    truncated: bool


class Step(Shape):
    """Traffic of one stretch of time; percentiles in milliseconds."""

    at: Time
    turns: int
    main: int
    aborted: int
    mismatches: int
    prompt_tokens: int
    completion_tokens: int
    ms_p50: float | None
    ms_p95: float | None
    first_token_ms_p50: float | None
    first_token_ms_p95: float | None


class Traffic(Shape):
    bucket_s: int
    items: list[Step]


class Lag(Shape):
    lag: int
    samples: int


class LineageStaleness(Shape):
    lineage_id: UUID
    lineage: str
    live_version: int
    trains: bool
    waiting: list[Lag]
    used: list[Lag]


class Staleness(Shape):
    max_lag: int
    batch: int
    items: list[LineageStaleness]


class Moved(Shape):
    """How the lineage stands; `changed` is false where it stood so already."""

    lineage: str
    live_version: int
    canary_version: int | None
    pinned_version: int | None
    changed: bool
    undone: list[int]
    quarantined: int
    dropped: int
