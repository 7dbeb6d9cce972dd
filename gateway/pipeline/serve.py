"""The pipeline itself."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass
from uuid import UUID

import structlog

from gateway.classify import next_state_of
from gateway.config import Settings
from gateway.engine.pool import EnginePool
from gateway.errors import ContextTooLong, EngineUnavailable, InvalidRequest, StoreError
from gateway.pipeline.place import Place, Placer
from gateway.pipeline.prompt import Prompter
from gateway.pipeline.turn import Sampled, joined, turn_record
from gateway.records import (
    Delta,
    Finish,
    FinishReason,
    Generation,
    NextState,
    Principal,
    Reply,
    Sampling,
    SessionRecord,
    Timings,
    TurnKind,
    TurnRecord,
    TurnRequest,
    Usage,
    new_id,
)
from gateway.store.turns import TurnStore
from gateway.store.writer import TurnWriter
from gateway.telemetry import get_logger
from gateway.tokens.parser import ReplyParser, parse_reply
from gateway.tokens.renderer import Renderer
from gateway.tokens.reply_format import ReplyFormat
from gateway.tokens.tokenizer import Tokenizer

log = get_logger(__name__)

#: SGLang refuses prompts that leave fewer ids than this in the context.
_ENGINE_RESERVE = 6

#: Enough of the prompt's end to see an opening `<think>`.
_TAIL_IDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The engine samples; nothing before this point has reached the client."""

    turn_id: UUID
    session_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The turn is durable; the client may see its end. `logprobs` are of the sampled ids."""

    turn_id: UUID
    session_id: UUID
    reply: Reply
    finish_reason: FinishReason
    usage: Usage
    version: int
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one chunk of sampled tokens adds: `ids` [n] and `logprobs` [n], and what shows."""

    deltas: tuple[Delta, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


Event = Started | Piece | Finished


class Pipeline:
    """Everything a turn passes through. One instance a process."""

    def __init__(
        self,
        *,
        settings: Settings,
        pool: EnginePool,
        turns: TurnStore,
        writer: TurnWriter,
        tokenizer: Tokenizer,
        renderer: Renderer,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._turns = turns
        self._writer = writer
        self._tokenizer = tokenizer
        self._placer = Placer(settings, turns)
        self._prompter = Prompter(turns, renderer)
        self._background: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait (bounded) until turns that clients left behind are stored."""
        if self._background:
            await asyncio.wait(self._background, timeout=self._settings.gateway.shutdown_grace_s)
        self._prompter.close()

    async def serve_turn(
        self, principal: Principal, request: TurnRequest
    ) -> AsyncGenerator[Event, None]:
        """Serve one call. Closing the generator early aborts it and stores what was sampled.

        Raises RequestError and EngineError; while Postgres is away it serves all the same.
        """
        created_at, clock = time.time(), time.perf_counter()
        turn_id = new_id()
        place = await self._placer.place(principal, request, created_at)
        structlog.contextvars.bind_contextvars(
            session_id=str(place.session.id), turn_id=str(turn_id)
        )
        signal = self._store_next_state(principal, request, place, turn_id, created_at)
        prompt = await self._prompter.prompt(principal, request, place.resolution)
        sampling = self._sampling(principal, request, place, prompt.ids)
        queued_ms = (time.perf_counter() - clock) * 1e3
        stream = self._pool.generate(
            lambda policy: Generation(
                rid=turn_id.hex,
                input_ids=prompt.ids,
                sampling=sampling,
                policy=policy,
                stop_token_ids=self._tokenizer.facts.stop_token_ids,
                session_key=place.session.id.hex,
            ),
            principal.lineage_id,
            place.session.id.hex,
        )
        sampled = Sampled()

        def record(finish: Finish, reply: Reply) -> TurnRecord:
            return turn_record(
                turn_id=turn_id,
                principal=principal,
                request=request,
                place=place,
                prompt=prompt,
                sampling=sampling,
                sampled=sampled,
                finish=finish,
                reply=reply,
                engine=stream.engine.name,
                timings=Timings(
                    queued_ms=queued_ms,
                    first_token_ms=sampled.first_token_ms,
                    total_ms=(time.perf_counter() - clock) * 1e3,
                ),
                created_at=created_at,
            )

        form, parser = self._parser(request, sampling, prompt.ids)
        turn: TurnRecord | None = None
        try:
            async with stream:
                await stream.start()
                structlog.contextvars.bind_contextvars(policy_version=stream.policy.version)
                yield Started(turn_id=turn_id, session_id=place.session.id)
                finish: Finish | None = None
                async for chunk in stream:
                    if sampled.first_token_ms is None:
                        sampled.first_token_ms = (time.perf_counter() - clock) * 1e3
                    sampled.ids += chunk.ids
                    sampled.logprobs += chunk.logprobs
                    finish = chunk.finish or finish
                    deltas = parser.feed(chunk.ids)
                    if chunk.finish is not None:
                        deltas += parser.finish()
                    sampled.streamed += deltas
                    yield Piece(deltas=tuple(deltas), ids=chunk.ids, logprobs=chunk.logprobs)
            if finish is None or finish.reason is FinishReason.ABORT:
                detail = finish.detail if finish else None
                raise EngineUnavailable(
                    f"the engine gave up on the reply: {detail or 'no finish'}",
                    engine=stream.engine.name,
                )
            reply = parse_reply(
                self._tokenizer,
                sampled.ids,
                stop_token_ids=self._tokenizer.facts.stop_token_ids,
                stop_strings=sampling.stop,
                form=form,
                call_ids=parser.call_ids,
                mint=_call_id,
            )
            turn = record(finish, reply)
            if signal is not None:
                await signal
            await self._commit(principal, request, place, turn)
            yield Finished(
                turn_id=turn_id,
                session_id=place.session.id,
                reply=reply,
                finish_reason=turn.finish_reason,
                usage=turn.usage,
                version=stream.policy.version,
                sampled_ids=tuple(sampled.ids),
                logprobs=tuple(sampled.logprobs),
            )
        finally:
            if turn is None and stream.started:
                # The client left or the engine died: what was sampled is kept, and says so.
                ended = Finish(reason=FinishReason.ABORT, detail="client_left_or_engine_failed")
                aborted = record(ended, joined(sampled.streamed))
                self._spawn(self._commit(principal, request, place, aborted))

    def _parser(
        self, request: TurnRequest, sampling: Sampling, prompt_ids: list[int]
    ) -> tuple[ReplyFormat, ReplyParser]:
        form = ReplyFormat.of(
            self._tokenizer.chat_template,
            prompt_end=self._tokenizer.decode(prompt_ids[-_TAIL_IDS:]),
            tools=bool(request.tools) and request.tool_choice != "none",
        )
        parser = ReplyParser(
            self._tokenizer,
            stop_token_ids=self._tokenizer.facts.stop_token_ids,
            stop_strings=sampling.stop,
            form=form,
            mint=_call_id,
        )
        return form, parser

    def _store_next_state(
        self, principal: Principal, request: TurnRequest, place: Place, turn_id: UUID, now: float
    ) -> asyncio.Task[None] | None:
        """Store what followed the parent's reply: on arrival, beside everything else."""
        parent = place.resolution.parent
        if not principal.capture or parent is None or place.retry_of is not None:
            return None
        followed = next_state_of(request, place.resolution)
        if followed is None:
            return None
        messages, role = followed
        state = NextState(
            turn_id=parent.turn_id,
            tenant_id=principal.tenant_id,
            following_id=turn_id,
            messages=messages,
            role=role,
            arrived_at=now,
            judge=parent.kind is not TurnKind.SIDE,
        )
        log.info("next_state", of_turn=str(parent.turn_id), role=role, messages=len(messages))
        return self._spawn(self._store(state))

    def _sampling(
        self, principal: Principal, request: TurnRequest, place: Place, prompt_ids: list[int]
    ) -> Sampling:
        """Sampling as sent: defaults filled in, the reply bounded by what the context leaves."""
        facts = self._tokenizer.facts
        if (wrong := self._tokenizer.first_invalid(prompt_ids)) is not None:
            raise InvalidRequest(f"token id {wrong} is outside the model's vocabulary")
        limit = self._pool.context_length(
            self._settings.model.context_length or facts.context_length
        )
        left = limit - len(prompt_ids)
        asked = request.sampling.max_tokens
        if left <= _ENGINE_RESERVE or (asked is not None and asked > left):
            raise ContextTooLong(
                limit=limit, prompt_tokens=len(prompt_ids), reply_tokens=asked or 1
            )
        for token in request.sampling.logit_bias or ():
            if not 0 <= token < facts.vocab_size:
                raise InvalidRequest(f"logit_bias: there is no token {token}", param="logit_bias")
        defaults = self._settings.sampling
        return request.sampling.filled(
            Sampling(
                temperature=defaults.temperature,
                top_p=defaults.top_p,
                max_tokens=min(defaults.max_tokens or left, left),
            ),
            None if place.kind.kind is TurnKind.SIDE else principal.sampling,
        )

    async def _commit(
        self, principal: Principal, request: TurnRequest, place: Place, turn: TurnRecord
    ) -> None:
        if not principal.capture:
            return
        await self._store(place.session, turn)
        self._turns.remember(turn)
        log.info(
            "served",
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
        if request.session_done:
            await self._end_session(principal, place)

    async def _store(self, *records: SessionRecord | TurnRecord | NextState) -> None:
        try:
            await self._writer.commit(*records)
        except StoreError as error:
            # Neither Postgres nor the spool took it: the one case in which a turn is lost, said
            # loudly. The client's request does not fail for it.
            log.error("turn_not_stored", error=error.message)  # noqa: TRY400 - no traceback

    async def _end_session(self, principal: Principal, place: Place) -> None:
        try:
            await self._turns.end_session(principal.tenant_id, place.session.id, "client_done")
        except StoreError as error:
            # It times out later; the client's reply does not wait for it.
            log.warning("session_not_ended", error=error.message)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _call_id() -> str:
    """A tool-call id, unique for ever: clients echo it, and it then finds the parent."""
    return f"call_{secrets.token_hex(12)}"
