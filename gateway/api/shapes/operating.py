"""What runs, what is paused, and the rules that it goes by."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from gateway.api.shapes.base import Next, Open, Shape, Time
from gateway.api.shapes.turns import Kind


class LineageStatus(Shape):
    """A lineage; `admission` is the back-pressure of this gateway."""

    id: UUID
    name: str
    base_model: str
    kind: Literal["lora", "full"]
    trains: bool
    live_version: int
    epoch: int
    ready: int
    lag_max: int | None
    leased: int
    last_step_at: Time | None
    steps: int
    admission: Open


class Jobs(Shape):
    queued: int
    leased: int
    oldest_at: Time | None


class WorkerHead(Shape):
    id: UUID
    kind: str


class Funnel(Shape):
    """How far turns got, and by reason where the others ended."""

    turns: int
    main: int
    side: int
    unknown: int
    trainable: int
    with_next_state: int
    judging: int
    scored: int
    samples: dict[str, int]
    trained: int
    dropped: dict[str, int]
    untrainable: dict[str, int]
    unscored: dict[str, int]


class Pause(Shape):
    """`subject_id` is a tenant, of training a lineage; `by` is the id of a key.

    Who paused a lineage, and why, only the tenant whose key it was is told.
    """

    what: Literal["capture", "judging", "training"]
    subject_id: UUID
    since: Time
    reason: str | None
    by: str | None


class Pauses(Shape):
    items: list[Pause]


class EngineAt(Shape):
    """An engine as one gateway has it; `requests` are its own that run there.

    They are null where the gateway is of an earlier release, which drains none.
    """

    id: UUID
    healthy: bool
    draining: bool
    requests: int | None


class Engine(Shape):
    """`requests` are those of all gateways; `by` is the id of a key or `cli`.

    `drained` is true where every gateway keeps off it and has no request left there.
    """

    name: str
    draining: bool
    drained: bool
    requests: int
    since: Time | None
    reason: str | None
    by: str | None
    gateways: list[EngineAt]


class Engines(Shape):
    items: list[Engine]


class Status(Shape):
    lineages: list[LineageStatus]
    jobs: Jobs
    sessions_open: int
    workers: list[WorkerHead]
    funnel: Funnel
    engines: list[Open]
    spooling: bool
    paused: list[Pause]


class Worker(Shape):
    id: UUID
    kind: str
    revision: str
    started_at: Time
    heartbeat_at: Time
    report: Open


class Workers(Shape):
    items: list[Worker]


class Rules(Shape):
    """`in_force` is what the settings file has with `stored` over it."""

    version: int
    stored: Open
    in_force: Open


class Classified(Shape):
    """Where a request would belong and what it would be; no session is a new one."""

    kind: Kind
    kind_rule: str
    confidence: float
    session_id: UUID | None
    resolve_rule: str
    ambiguous: bool
    branch_reason: str | None
    parent_id: UUID | None
    retry_of: UUID | None
    rolled_back: UUID | None


class Queued(Shape):
    """How many turns were found and how many of them are queued; `more` may be found yet."""

    found: int
    queued: int
    more: bool


class Imported(Shape):
    """How many lines were read, and how many of their turns are new."""

    lines: int
    turns: int
    present: int


class AuditEntry(Shape):
    """`actor` is the id of a key, `cli` or `job`."""

    id: UUID
    actor: str
    action: str
    subject: Open
    created_at: Time


class Audit(Shape):
    items: list[AuditEntry]
    next: Next
