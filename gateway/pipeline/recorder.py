"""Makes turns durable, and what followed them; goes on with it when a client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from uuid import UUID

from gateway.classify import next_state_of
from gateway.errors import StoreError
from gateway.pipeline.turn import Call
from gateway.records import NextState, SessionRecord, TurnKind, TurnRecord
from gateway.store.turns import TurnStore
from gateway.store.writer import TurnWriter
from gateway.telemetry import get_logger

log = get_logger(__name__)


class Recorder:
    """The pipeline's way to the store. A key whose calls are not captured stores nothing."""

    def __init__(self, turns: TurnStore, writer: TurnWriter) -> None:
        self._turns = turns
        self._writer = writer
        self._background: set[asyncio.Task[None]] = set()

    async def close(self, grace_s: float) -> None:
        """Wait (bounded) until turns that clients left behind are stored."""
        if self._background:
            await asyncio.wait(self._background, timeout=grace_s)

    async def commit(self, call: Call, turn: TurnRecord) -> None:
        """Store a turn; the last one of a call also ends the session if the client said so."""
        if not call.principal.capture:
            return
        await self._store(call.place.session, turn)
        self._turns.remember(turn, session=call.place.session)
        log.info(
            "served",
            turn_id=str(turn.id),
            kind=turn.kind,
            kind_rule=turn.kind_rule,
            resolve_rule=turn.resolve_rule,
            depth=turn.depth,
            branch_reason=turn.branch_reason,
            engine=turn.engine,
            finish_reason=turn.finish_reason,
            prompt_tokens=turn.usage.prompt_tokens,
            new_prompt_tokens=len(turn.prompt_ids),
            completion_tokens=turn.usage.completion_tokens,
            trainable=turn.trainable,
            untrainable_reason=turn.untrainable_reason,
            first_token_ms=turn.timings.first_token_ms and round(turn.timings.first_token_ms, 1),
            total_ms=round(turn.timings.total_ms, 1),
        )
        call.unsettled -= 1
        if call.request.session_done and not call.unsettled:
            await self._end_session(call)

    def abandon(self, call: Call, turn: TurnRecord | None) -> None:
        """A choice will not end: keep what was sampled of it, if anything, without waiting."""
        if turn is None:
            call.unsettled -= 1
        else:
            self._spawn(self.commit(call, turn))

    def next_state(self, call: Call, turn_id: UUID) -> asyncio.Task[None] | None:
        """Store what followed the parent's reply: on arrival, beside everything else."""
        principal, request, place = call.principal, call.request, call.place
        parent = place.resolution.parent
        if not principal.capture or parent is None or place.retry_of is not None:
            return None
        beside = place.kind.kind is TurnKind.SIDE and parent.kind is not TurnKind.SIDE
        followed = next_state_of(request, place.resolution, beside=beside)
        if followed is None:
            return None
        messages, role = followed
        state = NextState(
            turn_id=parent.turn_id,
            tenant_id=principal.tenant_id,
            following_id=turn_id,
            messages=messages,
            role=role,
            arrived_at=call.created_at,
            judge=parent.kind is not TurnKind.SIDE,
        )
        log.info("next_state", of_turn=str(parent.turn_id), role=role, messages=len(messages))
        return self._spawn(self._store(state))

    async def _store(self, *records: SessionRecord | TurnRecord | NextState) -> None:
        try:
            await self._writer.commit(*records)
        except StoreError as error:
            # Neither Postgres nor the spool took it: the one case in which a turn is lost, said
            # loudly. The client's request does not fail for it.
            log.error("turn_not_stored", error=error.message)  # noqa: TRY400 - no traceback

    async def _end_session(self, call: Call) -> None:
        try:
            await self._turns.end_session(
                call.principal.tenant_id, call.place.session.id, "client_done"
            )
        except StoreError as error:
            # It times out later; the client's reply does not wait for it.
            log.warning("session_not_ended", error=error.message)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
