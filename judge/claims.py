"""What the loop around jobs asks of the store, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol
from uuid import UUID

from gateway.records import JudgeJob, Judgement, Teaching


class Claims(Protocol):
    """The jobs in Postgres. Every method raises StoreUnavailable where it is away."""

    async def claim(self, worker_id: UUID, limit: int, lease_s: float) -> list[JudgeJob]: ...

    async def finish(
        self,
        worker_id: UUID,
        job: JudgeJob,
        judgement: Judgement,
        sample_method: str | None,
        teaching: Teaching | None = None,
    ) -> bool:
        """Whether the job was still this worker's."""
        ...

    async def fail(
        self,
        worker_id: UUID,
        job: JudgeJob,
        error: str,
        retry_after_s: float | None,
        *,
        counted: bool = True,
    ) -> bool:
        """Try again after `retry_after_s`; None sets the job aside."""
        ...

    async def extend(self, worker_id: UUID, jobs: Sequence[JudgeJob], lease_s: float) -> int: ...


@dataclass(slots=True)
class Counts:
    """What this worker has done since it started."""

    claimed: int = 0
    scored: int = 0
    unscored: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0

    def report(self) -> dict[str, int]:
        return asdict(self)
