"""Teacher log-probabilities: the sampled tokens as a model sees them that was given the hint.

The sampled ids follow the hinted prompt unchanged, so that the teacher's value at place i is about
the very token that the student sampled at place i, at temperature 1 whatever it was sampled at:

    hinted prompt [Q] + sampled ids [R]  ──score from Q──▶  log p(sampled[i] | hinted, sampled[:i])
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar
from uuid import UUID

from gateway.engine.base import Engine, Scored
from gateway.engine.chunks import reports, weight_version
from gateway.errors import (
    EngineError,
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    JudgeError,
    NextstateError,
    StoreError,
)
from gateway.records import Lesson, PolicyKind, PolicyRef, Teaching
from gateway.telemetry import get_logger
from gateway.tokens.renderer import Renderer
from judge.hinted import hinted_prompt

T = TypeVar("T")

Kind = Literal["base", "fixed", "live"]
Live = Callable[[UUID], Awaitable[PolicyRef]]

log = get_logger(__name__)

_TRANSIENT = (EngineUnavailable, EngineTimeout, EngineOverloaded)
_FIRST_WAIT_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The model that scores.

    `base`: the model without any training, which on the engines of a LoRA lineage is every request
    that names no adapter. `live`: the version that is served now, which drifts with its student.
    `fixed`: whatever stands at `engines`, the same for all lineages, with the policy's vocabulary.
    `students` are the policy's own engines, and `live` names the version that they serve.
    """

    kind: Kind
    engines: Sequence[Engine]
    students: Sequence[Engine]
    live: Live
    renderer: Renderer
    context_length: int | None = None
    top_k: int = 0
    top_of: Literal["teacher", "student"] = "teacher"
    retries: int = 2
    timeout_s: float = 60.0

    async def teach(self, lesson: Lesson, hint: str) -> Teaching:
        """The teacher's values of `lesson.sampled_ids` [R] under the hint.

        Raises JudgeError where there is nothing to score, no user message to put the hint at, no
        room for both, no teacher of this kind, or no answer within the retries.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._teach(lesson, hint)
        except TimeoutError:
            raise JudgeError(f"the teacher took longer than {self.timeout_s:g} s") from None
        except (EngineError, StoreError) as error:
            raise JudgeError(f"the teacher: {type(error).__name__}: {error.message}") from None
        except JudgeError:
            raise
        except NextstateError as error:
            raise JudgeError(f"the hinted prompt: {error.message}") from None

    async def _teach(self, lesson: Lesson, hint: str) -> Teaching:
        if not lesson.sampled_ids:
            raise JudgeError("there are no sampled ids to score")
        prompt = await asyncio.to_thread(hinted_prompt, self.renderer, lesson, hint)

        async def attempt(number: int) -> Teaching:
            engine = self._pick(self.engines, lesson, number)
            status = await engine.status()
            self._check_room(len(prompt) + len(lesson.sampled_ids), status.context_length)
            policy = await self._policy(lesson.lineage_id)
            await _check_weights(engine, policy)
            scored = await self._score(engine, lesson, prompt, policy, number)
            await _check_weights(engine, policy)
            if len(scored.logprobs) != len(lesson.sampled_ids):
                raise JudgeError(
                    f"{len(lesson.sampled_ids)} tokens to score, {len(scored.logprobs)} scores"
                )
            fixed = self.kind == "fixed"
            return Teaching(
                teacher=self.kind,
                lineage_id=None if fixed else policy.lineage_id,
                version=None if fixed else policy.version,
                model=status.model,
                hint=hint,
                prompt_len=len(prompt),
                logprobs=scored.logprobs,
                top_ids=scored.top_ids,
                top_logprobs=scored.top_logprobs,
            )

        return await self._retried(attempt)

    async def _score(
        self, engine: Engine, lesson: Lesson, prompt: list[int], policy: PolicyRef, number: int
    ) -> Scored:
        ids = [*prompt, *lesson.sampled_ids]
        if not self.top_k:
            return Scored(logprobs=tuple(await engine.score(ids, len(prompt), policy)))
        if self.top_of == "teacher":
            return await engine.likeliest(ids, len(prompt), policy, self.top_k)
        student = self._pick(self.students, lesson, number)
        seen = [*lesson.prompt_ids, *lesson.sampled_ids]
        version = await self.live(lesson.lineage_id)
        likely = await student.likeliest(seen, len(lesson.prompt_ids), version, self.top_k)
        return await engine.score_among(ids, len(prompt), policy, likely.top_ids)

    async def _policy(self, lineage_id: UUID) -> PolicyRef:
        base = PolicyRef(lineage_id=lineage_id, version=0, kind=PolicyKind.BASE)
        if self.kind == "fixed":
            return base
        live = await self.live(lineage_id)
        if self.kind == "live":
            return live
        if live.kind is PolicyKind.FULL:
            raise JudgeError(
                "the engines of a full lineage have no base beside what they serve: "
                "give judge.teacher.engine, of kind fixed, the base model"
            )
        return base

    def _check_room(self, length: int, limit: int | None) -> None:
        room = self.context_length or limit
        if room is not None and length > room:
            raise JudgeError(
                f"the hinted prompt and the reply are {length} tokens, the context is {room}"
            )

    @staticmethod
    def _pick(engines: Sequence[Engine], lesson: Lesson, number: int) -> Engine:
        """Another one at each attempt; turns are spread over all."""
        return engines[(lesson.turn_id.int + number) % len(engines)]

    async def _retried(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        for number in range(self.retries):
            try:
                return await attempt(number)
            except _TRANSIENT as error:
                log.info("teacher_again", engine=error.engine, error=type(error).__name__)
            await asyncio.sleep(_FIRST_WAIT_S * 2**number)
        return await attempt(self.retries)


async def _check_weights(engine: Engine, policy: PolicyRef) -> None:
    """Raises EngineUnavailable where an engine of a full lineage serves another version."""
    if policy.kind is not PolicyKind.FULL:
        return
    if not reports((await engine.status()).weight_version, policy):
        raise EngineUnavailable(f"does not serve {weight_version(policy)}", engine=engine.name)
