"""The step from a judgement with a hint to what the teacher says, which never costs the score."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from gateway.errors import NextstateError
from gateway.records import JudgeJob, Judgement, Teaching, TurnKind
from gateway.telemetry import get_logger

log = get_logger(__name__)

_ERROR_LIMIT = 500

#: The teaching of a turn under a hint. Raises JudgeError where there is none to be had.
Teach = Callable[[JudgeJob, str], Awaitable[Teaching]]


def wanted(job: JudgeJob, judgement: Judgement) -> bool:
    """Whether there is a hint, and a turn that may be trained on."""
    return job.kind is TurnKind.MAIN and job.trainable and judgement.hint is not None


async def taught(
    teach: Teach, job: JudgeJob, judgement: Judgement
) -> tuple[Teaching | None, Judgement]:
    """The teaching, and the judgement with what it took in its usage: or why there is none."""
    assert judgement.hint is not None
    started = time.perf_counter()
    teaching, usage = None, dict(judgement.usage or {})
    try:
        teaching = await teach(job, judgement.hint)
    except Exception as error:  # noqa: BLE001 - a score in hand is never lost to a teacher
        words = error.message if isinstance(error, NextstateError) else str(error)
        usage["teacher_error"] = f"{type(error).__name__}: {words}"[:_ERROR_LIMIT]
        log.warning("not_taught", turn_id=str(job.turn_id), error=type(error).__name__)
    else:
        usage["teacher_tokens"] = teaching.prompt_len + len(teaching.logprobs)
    usage["teacher_ms"] = round((time.perf_counter() - started) * 1e3, 1)
    return teaching, replace(judgement, usage=usage)
