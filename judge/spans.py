"""The spans of judging, in the trace of the turn that is judged."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.records import JudgeJob, Judgement, Teaching
from gateway.telemetry.tracing import Traces, of_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of the clock: the judges were asked, said what they found, and it is stored."""

    began: float
    judged: float
    stored: float


def judged(
    traces: Traces, job: JudgeJob, judgement: Judgement, teaching: Teaching | None, times: Times
) -> None:
    """`judge`, and below it `teach` where a teacher was asked."""
    if not traces.samples(job.turn_id):
        return
    usage = judgement.usage or {}
    span = traces.span(
        "judge",
        None,
        parent=of_turn(job.turn_id),
        start=times.began,
        end=times.stored,
        attributes={
            "nextstate.turn_id": str(job.turn_id),
            "gen_ai.conversation.id": str(job.session_id),
            "nextstate.policy_version": job.version_min,
            "nextstate.judge": judgement.judge,
            "nextstate.rule": judgement.rule,
            "nextstate.score": judgement.score,
            "nextstate.hinted": judgement.hint is not None,
        },
    )
    if "teacher_ms" in usage:
        refused = usage.get("teacher_error")
        traces.span(
            "teach",
            None,
            parent=span,
            start=times.judged,
            end=times.judged + float(usage["teacher_ms"]) / 1e3,
            attributes={"nextstate.teacher": teaching.teacher if teaching else None},
            # The type of an error is safe to tell; its words may hold what people wrote.
            error=str(refused).partition(":")[0] if refused else None,
        )
