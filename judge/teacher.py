"""Teacher log-probabilities: the sampled tokens as a model sees them that was given the hint.

The hinted prompt is made in the token domain. Only the prompt is rendered again, with the hint at
its last user message; the sampled ids follow it unchanged, so that the teacher's value at place i
is about the very token that the student sampled at place i:

    hinted prompt [Q] + sampled ids [R]  ──score from Q──▶  log p(sampled[i] | hinted, sampled[:i])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gateway.engine.base import Engine
from gateway.errors import JudgeError
from gateway.records import Message, PolicyKind, PolicyRef
from gateway.tokens.renderer import Renderer, Tools
from judge.fences import plain

_HEADING = "A hint for this answer:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherLogprobs:
    """`logprobs` [R] in nats at temperature 1, one a sampled id, under `policy`.

    `prompt_len` is the length Q of the hinted prompt.
    """

    policy: PolicyRef
    prompt_len: int
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The model that scores: by default the base, which no training moves.

    A later version as teacher drifts with its student; `policy` says which one it was.
    """

    engine: Engine
    renderer: Renderer
    policy: PolicyRef
    context_length: int

    @classmethod
    def on_base(
        cls, engine: Engine, renderer: Renderer, lineage_id: UUID, context_length: int
    ) -> Teacher:
        base = PolicyRef(lineage_id=lineage_id, version=0, kind=PolicyKind.BASE)
        return cls(engine=engine, renderer=renderer, policy=base, context_length=context_length)

    async def logprobs(
        self,
        messages: Sequence[Message],
        sampled_ids: Sequence[int],
        hint: str,
        *,
        tools: Tools = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> TeacherLogprobs:
        """Score `sampled_ids` [R], the reply to the conversation `messages`, under the hint.

        Raises JudgeError where there is nothing to score, no user message to put the hint at, or
        no room for both; InvalidRequest where the template refuses the messages; EngineError.
        """
        if not sampled_ids:
            raise JudgeError("there are no sampled ids to score")
        prompt = self.renderer.render(hinted(messages, hint), tools, template_kwargs or {})
        ids = [*prompt, *sampled_ids]
        if len(ids) > self.context_length:
            raise JudgeError(
                f"the hinted prompt and the reply are {len(ids)} tokens, "
                f"the context is {self.context_length}"
            )
        values = await self.engine.score(ids, len(prompt), self.policy)
        if len(values) != len(sampled_ids):
            raise JudgeError(f"{len(sampled_ids)} tokens to score, {len(values)} scores")
        return TeacherLogprobs(policy=self.policy, prompt_len=len(prompt), logprobs=tuple(values))


def hinted(messages: Sequence[Message], hint: str) -> list[Message]:
    """The conversation with the hint at the end of its last user message.

    The other messages are the same objects. Raises JudgeError where no user spoke.
    """
    places = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    if not places:
        raise JudgeError("there is no user message to put the hint at")
    at = places[-1]
    changed = dict(messages[at])
    # The hint's words may be a user's: none of them may end the message that they stand in.
    note = f"{_HEADING} {plain(hint).strip()}"
    content = changed.get("content")
    if isinstance(content, list | tuple):
        changed["content"] = [*content, {"type": "text", "text": note}]
    else:
        changed["content"] = f"{content}\n\n{note}" if content else note
    return [*messages[:at], changed, *messages[at + 1 :]]
