"""What becomes of the turns of a step: a line of the log each, and spans in their traces."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from gateway.records import StepRecord, TrainingSample
from gateway.store.policies import PolicyStore
from gateway.telemetry import get_logger
from gateway.telemetry.tracing import Traces, of_turn

log = get_logger(__name__)


class Lives:
    """Tells of each turn that it was trained on, and when the version that it made is live."""

    def __init__(self, policies: PolicyStore, traces: Traces | None = None) -> None:
        self._policies, self._traces = policies, traces

    def trained(self, step: StepRecord, samples: Sequence[TrainingSample]) -> None:
        """A step consumed these samples."""
        if self._traces is not None:
            self._traces.span(
                "step",
                of_turn(step.id),
                parent=None,
                start=step.started_at,
                end=step.ended_at,
                attributes={
                    "nextstate.step_id": str(step.id),
                    "nextstate.lineage_id": str(step.lineage_id),
                    "nextstate.from_version": step.from_version,
                    "nextstate.policy_version": step.to_version,
                    "nextstate.samples": len(samples),
                },
            )
        for sample, lag in zip(samples, step.lags, strict=True):
            log.info(
                "turn_trained",
                turn_id=str(sample.turn_id),
                session_id=str(sample.session_id),
                policy_version=step.to_version,
                step_id=str(step.id),
                score=sample.score,
                lag=lag,
            )
            between = (step.started_at, step.ended_at)
            self._span("train", sample.turn_id, step.id, step.to_version, between)

    async def live(self, lineage_id: UUID, version: int, since: float, until: float) -> None:
        """A version is live; it was being published `since`. Raises StoreUnavailable."""
        for turn in await self._policies.turns_of(lineage_id, version):
            log.info(
                "turn_live",
                turn_id=str(turn.turn_id),
                session_id=str(turn.session_id),
                policy_version=version,
                step_id=str(turn.step_id),
            )
            self._span("publish", turn.turn_id, turn.step_id, version, (since, until))

    def _span(
        self, name: str, turn_id: UUID, step_id: UUID, version: int, between: tuple[float, float]
    ) -> None:
        """In the turn's trace, with a link to its step, which many turns share."""
        if self._traces is None or not self._traces.samples(turn_id):
            return
        self._traces.span(
            name,
            None,
            parent=of_turn(turn_id),
            start=between[0],
            end=between[1],
            attributes={
                "nextstate.turn_id": str(turn_id),
                "nextstate.step_id": str(step_id),
                "nextstate.policy_version": version,
            },
            links=(of_turn(step_id),),
        )
