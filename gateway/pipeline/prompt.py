"""The ids an engine is given: recorded ids extended, or rendered in full where they cannot be."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gateway.errors import StoreError
from gateway.records import Principal, Resolution, Trail, TurnRequest
from gateway.store.turns import TurnStore
from gateway.telemetry import get_logger
from gateway.tokens.renderer import Renderer, common_prefix

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """`ids` [P]; the first `shared_len` of them begin the parent's trail.

    `branch_reason` says why the trail was not extended whole; None where it was, and at a root.
    """

    ids: list[int]
    shared_len: int = 0
    branch_reason: str | None = None
    parent: Trail | None = None


class Prompter:
    """Renders off the event loop, in one thread, so that requests do not fight over the core."""

    def __init__(self, turns: TurnStore, renderer: Renderer) -> None:
        self._turns = turns
        self._renderer = renderer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="render")

    def close(self) -> None:
        self._thread.shutdown()

    async def prompt(
        self, principal: Principal, request: TurnRequest, resolution: Resolution
    ) -> Prompt:
        """Raises InvalidRequest where the model's template refuses the messages."""
        trail = await self._trail(principal, resolution)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._build, request, resolution, trail)

    async def length(self, request: TurnRequest) -> int:
        """How many ids a request is rendered to. Raises InvalidRequest as `prompt` does."""
        loop = asyncio.get_running_loop()
        render = self._renderer.render
        ids = await loop.run_in_executor(
            self._thread, render, request.messages, request.tools, request.template_kwargs
        )
        return len(ids)

    async def _trail(self, principal: Principal, resolution: Resolution) -> Trail | None:
        if resolution.parent is None:
            return None
        try:
            trail = await self._turns.trail(principal.tenant_id, resolution.parent.turn_id)
        except StoreError as error:
            log.warning("trail_without_store", error=error.message)
            return None
        # A turn that came as text has no ids that could be extended.
        return trail if trail is not None and trail.sampled_ids else None

    def _build(self, request: TurnRequest, resolution: Resolution, trail: Trail | None) -> Prompt:
        if request.prompt_ids is not None:
            return Prompt(ids=list(request.prompt_ids))
        messages, tools, options = request.messages, request.tools, request.template_kwargs
        reason = resolution.branch_reason
        if reason == "tools_changed" and not self._renderer.uses_tools:
            reason = None
        if trail is not None and reason is None:
            new = messages[resolution.new_from :]
            extension = self._renderer.extend(trail, new, messages, tools, options)
            if extension.ids is not None:
                shared = len(trail.prompt_ids) + len(trail.sampled_ids)
                return Prompt(ids=extension.ids, shared_len=shared, parent=trail)
            reason = extension.reason
        elif resolution.parent is not None and reason is None:
            reason = "parent_ids_missing"
        ids = self._renderer.render(messages, tools, options)
        shared = 0
        if trail is not None:
            shared = common_prefix([*trail.prompt_ids, *trail.sampled_ids], ids)
        return Prompt(ids=ids, shared_len=shared, branch_reason=reason, parent=trail)
