"""Makes turns durable, and what followed them; goes on with it when a client has left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from uuid import UUID

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from gateway.classify import next_state_of, told
from gateway.errors import StoreError
from gateway.pipeline.spans import TurnSpans
from gateway.pipeline.turn import Call
from gateway.records import NextState, TurnKind, TurnRecord, without_data
from gateway.redaction import Redactor
from gateway.store.turns import TurnStore
from gateway.store.writer import TurnWriter
from gateway.telemetry import get_logger
from gateway.telemetry.metrics import ServingMetrics

log = get_logger(__name__)


class Recorder:
    """The pipeline's way to the store. A key whose calls are not captured stores nothing.

    Images and audio are stored with `keep_media` only; without, what describes them is. What a
    `redactor` finds reaches neither the store nor the memory of what was stored last, nor the log,
    which holds what was said with `log_content` alone.
    """

    def __init__(
        self,
        turns: TurnStore,
        writer: TurnWriter,
        *,
        keep_media: bool = False,
        redactor: Redactor | None = None,
        metrics: ServingMetrics | None = None,
        spans: TurnSpans | None = None,
        log_content: bool = False,
    ) -> None:
        self._spans, self._log_content = spans, log_content
        self._metrics = metrics or ServingMetrics(CollectorRegistry())
        self._keep_media = keep_media
        self._redactor = redactor
        self._turns = turns
        self._writer = writer
        self._background: set[asyncio.Task[None]] = set()

    async def close(self, grace_s: float) -> None:
        """Wait (bounded) until turns that clients left behind are stored."""
        if self._background:
            await asyncio.wait(self._background, timeout=grace_s)

    async def commit(self, call: Call, turn: TurnRecord) -> None:
        """Store a turn; the last one of a call also ends the session if the client said so.

        So does one that is not captured: those before it may be.
        """
        self._metrics.served(turn)
        if call.principal.capture:
            if call.media and not self._keep_media:
                turn = replace(turn, messages=without_data(turn.messages, urls=True))
            if self._redactor is not None:
                turn = await self._redactor.of_turn(call.request, turn)
            stored = False
            try:
                stored = await self._writer.commit(call.place.session, turn)
            except StoreError as error:
                self._not_stored(error)
            else:
                self._metrics.stored(turn)
            self._kept(call, turn, stored=stored)
        else:
            self._metrics.uncaptured()
        call.unsettled -= 1
        if call.request.session_done and not call.unsettled:
            await self._end_session(call)

    def _kept(self, call: Call, turn: TurnRecord, *, stored: bool) -> None:
        """Remember a turn as it was stored, in Postgres or elsewhere, and tell of it."""
        self._turns.remember(turn, session=call.place.session, stored=stored)
        if self._spans is not None:
            self._spans.stored(call, turn, ended_at=time.time())
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
        if self._log_content:
            messages = without_data(turn.messages, urls=True)
            log.info("said", turn_id=str(turn.id), messages=messages, reply=turn.reply)

    def abandon(self, call: Call, turn: TurnRecord | None) -> None:
        """A choice will not end: keep what was sampled of it, if anything, without waiting."""
        if turn is None:
            call.unsettled -= 1
        else:
            self._spawn(self.commit(call, turn))

    def next_state(self, call: Call, turn_id: UUID) -> asyncio.Task[None] | None:
        """Store what followed the parent's reply: on arrival, beside everything else.

        Where the user discarded a later reply, the same words are what followed that one.
        """
        principal, request, place = call.principal, call.request, call.place
        parent = place.resolution.parent
        if not principal.capture or parent is None or place.retry_of is not None:
            return None
        # What is held may turn out to be no next state; where it does, it is told later.
        beside = place.kind.kind is not TurnKind.MAIN and parent.kind is not TurnKind.SIDE
        followed = next_state_of(request, place.resolution, beside=beside)
        if followed is None:
            return self._spawn(self._follow(call, [])) if place.retells else None
        messages, role = followed
        if call.media and not self._keep_media:
            messages = without_data(messages, urls=True)
        state = NextState(
            turn_id=parent.turn_id,
            tenant_id=principal.tenant_id,
            following_id=turn_id,
            messages=messages,
            role=role,
            arrived_at=call.created_at,
            judge=parent.kind is not TurnKind.SIDE,
        )
        states = [state]
        if place.rolled_back is not None:
            states.append(replace(state, turn_id=place.rolled_back, judge=True, how="rolled_back"))
        return self._spawn(self._follow(call, states))

    async def _follow(self, call: Call, states: Sequence[NextState]) -> None:
        """Store next states, and what they show of earlier ones."""
        place, tenant_id = call.place, call.principal.tenant_id
        parent = place.resolution.parent
        # Here, where no engine waits to be asked.
        for each in states:
            log.info(
                "next_state",
                of_turn=str(each.turn_id),
                role=each.role,
                messages=len(each.messages),
                how=each.how,
            )
        if self._redactor is not None:
            states = await self._redactor.of_next_states(states)
        state = states[0] if states else None
        earlier: list[NextState] = []
        try:
            if place.retells and parent is not None and parent.parent_id is not None:
                earlier = await self._earlier(call, parent.parent_id, parent.turn_id)
                state = earlier[0] if earlier else None
            if place.off_line or (place.given_up and state is not None):
                await self._turns.set_beside(tenant_id, place.off_line, place.given_up, state)
        except StoreError as error:
            log.warning("branches_not_put_right", error=error.message)
        if earlier or states:
            try:
                await self._writer.commit(*earlier, *states)
            except StoreError as error:
                self._not_stored(error)

    async def _earlier(self, call: Call, turn_id: UUID, following_id: UUID) -> list[NextState]:
        """What followed a turn, as the request of the one that followed has it."""
        messages, arrived_at = await self._turns.asked(call.principal.tenant_id, following_id)
        followed = told(messages)
        if followed is None:
            return []
        return [
            NextState(
                turn_id=turn_id,
                tenant_id=call.principal.tenant_id,
                following_id=following_id,
                messages=followed[0],
                role=followed[1],
                arrived_at=arrived_at,
            )
        ]

    def _not_stored(self, error: StoreError) -> None:
        """Neither Postgres nor the spool took it: the one case in which a turn is lost.

        That is said loudly; the client's request does not fail for it.
        """
        self._metrics.lost()
        log.error("turn_not_stored", error=error.message)

    async def _end_session(self, call: Call) -> None:
        tenant_id, session = call.principal.tenant_id, call.place.session
        name, session_id = session.external_id, session.id
        try:
            if name is not None:
                # Of requests that open it at the same time, only one minted its id.
                named = (await self._turns.named_sessions(tenant_id, [name])).get(name)
                session_id = (named and named.id) or session_id
            await self._turns.end_session(tenant_id, session_id, "client_done")
        except StoreError as error:
            # It times out later; the client's reply does not wait for it.
            log.warning("session_not_ended", error=error.message)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
