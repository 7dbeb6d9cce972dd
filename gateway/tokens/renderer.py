"""Conversations to prompt ids: rendered in full, or by extending ids that are already recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from gateway.records import FinishReason, Message, Trail
from gateway.tokens.marks import Marks

Tools = Sequence[Mapping[str, Any]]


class Extension(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A next prompt that starts with the parent's prompt and sampled ids, or why there is none.

    `added` are the ids after those of the `trail`, which is not copied for them. `reason` is one
    of `parent_truncated`, `parent_not_closed` (a stop string ended it, and no call), `nothing_new`,
    `history_edited`, `template_dropped_reasoning` and `template_not_append_only`.
    """

    trail: Trail | None = None
    added: list[int] | None = None
    reason: str | None = None

    @property
    def ids(self) -> list[int] | None:
        """The whole prompt [P]."""
        if self.trail is None or self.added is None:
            return None
        return [*self.trail.prompt_ids, *self.trail.sampled_ids, *self.added]


class Renderer(Protocol):
    """Turns messages into the ids that the model is prompted with.

    Both methods raise InvalidRequest where the model's template refuses the messages. They take
    no lock and do no I/O, so they may run in a thread.
    """

    @property
    def name(self) -> str: ...

    @property
    def uses_tools(self) -> bool:
        """Whether a change of tools changes the prompt at all."""
        ...

    @property
    def marks(self) -> Marks:
        """What is written for images and audio; kinds without marks cannot be rendered."""
        ...

    def render(
        self, messages: Sequence[Message], tools: Tools, template_kwargs: Mapping[str, Any]
    ) -> list[int]:
        """The whole prompt, with the opening of the next reply."""
        ...

    def extend(
        self,
        trail: Trail,
        new_messages: Sequence[Message],
        messages: Sequence[Message],
        tools: Tools,
        template_kwargs: Mapping[str, Any],
    ) -> Extension:
        """trail.prompt_ids + trail.sampled_ids + what closes the reply + the new messages.

        `messages` is the whole conversation, its last len(new_messages) the new ones, so that
        the parent's reply stands just before them. The ids of the trail are kept as they are.
        """
        ...


def blocked(trail: Trail, new_messages: Sequence[Message]) -> str | None:
    """Why no renderer could extend this trail, or None."""
    if trail.finish_reason in (FinishReason.LENGTH, FinishReason.ABORT):
        return "parent_truncated"
    if not new_messages:
        return "nothing_new"
    for message in new_messages:
        if message["role"] == "assistant":
            return "history_edited"
    return None


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids two sequences share: the shared_len of a branch."""
    # Equal slices are compared in C, so halving beats walking id by id.
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
