"""The ids an engine is given: recorded ids extended, or rendered in full where they cannot be."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from gateway.errors import InvalidRequest, StoreError
from gateway.records import (
    Candidate,
    Media,
    Message,
    Principal,
    Resolution,
    Trail,
    TurnRequest,
    packed_ids,
    plain_text,
)
from gateway.store.turns import TurnStore
from gateway.telemetry import get_logger
from gateway.tokens.marks import is_marked
from gateway.tokens.renderer import Renderer, common_prefix

log = get_logger(__name__)

#: What is rendered on the event loop has no more than this.
_FEW_CHARACTERS, _FEW_MESSAGES = 6000, 64


class Prompt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`ids` [P]; the first `shared_len` of them begin the parent's trail.

    `branch_reason` says why the trail was not extended whole; None where it was, and at a root.
    """

    ids: array[int]
    shared_len: int = 0
    branch_reason: str | None = None
    parent: Trail | None = None


class Prompter:
    """Renders off the event loop, in one thread, so that requests do not fight over the core.

    What is short is rendered at once: handing it over would cost several times as much.
    """

    def __init__(self, turns: TurnStore, renderer: Renderer) -> None:
        self._turns = turns
        self._renderer = renderer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="render")

    def close(self) -> None:
        self._thread.shutdown()

    async def prompt(
        self,
        principal: Principal,
        request: TurnRequest,
        resolution: Resolution,
        media: Sequence[Media],
    ) -> Prompt:
        """`media` are those of the messages.

        Raises InvalidRequest where the model's template refuses the messages.
        """
        trail = None
        if resolution.parent is not None:
            trail = await self._trail(principal, resolution.parent)
        if trail is None:
            if request.prompt_ids is not None or (not request.tools and _few(request.messages)):
                return self._rendered(request, resolution, None, None, media)
        elif _few(request.messages[max(resolution.new_from - 1, 0) :]):
            extended, _ = self._extended(request, resolution, trail, media)
            if extended is not None:
                return extended
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread, self._build, request, resolution, trail, media
        )

    async def ids(self, request: TurnRequest) -> Sequence[int]:
        """The ids [P] that a request is rendered to. Raises InvalidRequest as `prompt` does."""
        loop = asyncio.get_running_loop()
        render = self._renderer.render
        return await loop.run_in_executor(
            self._thread, render, request.messages, request.tools, request.template_kwargs
        )

    async def _trail(self, principal: Principal, parent: Candidate) -> Trail | None:
        try:
            trail = await self._turns.trail(principal.tenant_id, parent.turn_id)
        except StoreError as error:
            log.warning("trail_without_store", error=error.message)
            return None
        # A turn that came as text has no ids that could be extended.
        return trail if trail is not None and trail.sampled_ids else None

    def _build(
        self,
        request: TurnRequest,
        resolution: Resolution,
        trail: Trail | None,
        media: Sequence[Media],
    ) -> Prompt:
        reason = None
        if trail is not None:
            extended, reason = self._extended(request, resolution, trail, media)
            if extended is not None:
                return extended
        return self._rendered(request, resolution, trail, reason, media)

    def _extended(
        self, request: TurnRequest, resolution: Resolution, trail: Trail, media: Sequence[Media]
    ) -> tuple[Prompt | None, str | None]:
        """The trail with the ids of what is new, or why there is no such prompt."""
        if request.prompt_ids is not None:
            return None, None
        reason = resolution.branch_reason
        if reason is not None and self._matters(reason):
            return None, reason
        messages = request.messages
        extension = self._renderer.extend(
            trail,
            messages[resolution.new_from :],
            messages,
            request.tools,
            request.template_kwargs,
        )
        if extension.added is None:
            return None, extension.reason
        whole = _whole(trail)
        ids = whole + _packed(extension.added)
        if media and not is_marked(ids, media, self._renderer.marks):
            return None, "media_marks_differ"
        return Prompt(ids=ids, shared_len=len(whole), parent=trail), None

    def _matters(self, reason: str) -> bool:
        """Whether what resolution says keeps the parent from being extended."""
        return reason != "tools_changed" or self._renderer.uses_tools

    def _rendered(
        self,
        request: TurnRequest,
        resolution: Resolution,
        trail: Trail | None,
        reason: str | None,
        media: Sequence[Media],
    ) -> Prompt:
        """The whole prompt anew, `reason` being why a `trail` was not extended."""
        if request.prompt_ids is not None:
            return Prompt(ids=_packed(request.prompt_ids))
        if trail is None:
            reason = resolution.branch_reason
            if reason is not None and not self._matters(reason):
                reason = None
            if resolution.parent is not None and reason is None:
                reason = "parent_ids_missing"
        ids = _packed(
            self._renderer.render(request.messages, request.tools, request.template_kwargs)
        )
        if media and not is_marked(ids, media, self._renderer.marks):
            raise InvalidRequest(
                "The model's template cannot place these images or audio, or the text holds a "
                "mark that stands for one.",
                param="messages",
            )
        shared = 0 if trail is None else common_prefix(_whole(trail), ids)
        return Prompt(ids=ids, shared_len=shared, branch_reason=reason, parent=trail)


def _few(messages: Sequence[Message]) -> bool:
    """Whether messages are tokenized in well under a millisecond; a reply, with what follows it."""
    if len(messages) > _FEW_MESSAGES:
        return False
    left = _FEW_CHARACTERS
    for message in messages:
        content = message.get("content")
        left -= len(content) if type(content) is str else len(plain_text(message))
        if "tool_calls" in message:
            for call in message["tool_calls"] or ():
                left -= len(call["function"]["arguments"])
    return left >= 0


def _whole(trail: Trail) -> array[int]:
    return packed_ids(trail.prompt_ids) + packed_ids(trail.sampled_ids)


def _packed(ids: Sequence[int]) -> array[int]:
    try:
        return packed_ids(ids)
    except OverflowError:
        raise InvalidRequest("a token id is outside the model's vocabulary") from None
