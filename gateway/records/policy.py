"""Versions, and how they are trained and published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec


class PolicyState(StrEnum):
    CANDIDATE = "candidate"
    CANARY = "canary"
    LIVE = "live"
    RETIRED = "retired"
    ROLLED_BACK = "rolled_back"
    REFUSED = "refused"


class PolicyKind(StrEnum):
    BASE = "base"
    LORA = "lora"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """One version of one lineage, as engines are told about it.

    Version 0 is the base model (`kind` base, no `uri`). `adapter` is the name that an engine
    knows the version by; it is unique for ever, because engines reload a name from its path.
    """

    lineage_id: UUID
    version: int
    kind: PolicyKind
    uri: str | None = None
    checksum: str | None = None

    @property
    def adapter(self) -> str | None:
        return (
            None if self.kind is not PolicyKind.LORA else f"{self.lineage_id.hex}-v{self.version}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What engines are to serve of a lineage: the live version, a canary to a share of sessions.

    No engine falls back on the versions `undone`: they were rolled back or refused. Where whole
    weights are replaced, engines come to have a candidate one by one: those named in `proved` may
    serve what is `coming` before it is live.
    """

    live: PolicyRef
    canary: PolicyRef | None = None
    share: float = 0.0
    undone: frozenset[int] = frozenset()
    coming: PolicyRef | None = None
    proved: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What Postgres says of a lineage, and of the gates of its live version and its canary."""

    epoch: int
    live: PolicyRef
    canary: PolicyRef | None
    pinned: int | None
    gate: Mapping[str, Any]
    canary_gate: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The main-line turns of one session by some versions, for a gate to compare.

    `errors` are replies that were cut, aborted or misread, `log_length` the sum over turns of
    ln(1 + tokens); `score` is the sum over the `judged` turns.
    """

    turns: int
    errors: int
    log_length: float
    judged: int
    score: float


class VersionSpan(msgspec.Struct, frozen=True, gc=False):
    """Sampled tokens [start, end) came from `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A finished training step, as one fenced transaction names it.

    `lags` [n] are the version lags of the consumed samples `sample_ids` [n].
    """

    id: UUID
    lineage_id: UUID
    epoch: int
    from_version: int
    to_version: int
    policy: PolicyRef
    checkpoint: str
    sample_ids: tuple[UUID, ...]
    lags: tuple[int, ...]
    metrics: Mapping[str, Any]
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapRecord:
    """One engine moved (or not) from one version to another."""

    lineage_id: UUID
    engine: str
    from_version: int
    to_version: int
    outcome: str
    detail: str | None = None
    load_ms: float | None = None
    pause_ms: float | None = None
    probe_max_diff: float | None = None
    started_at: float
    ended_at: float
