"""One choice of a call: sampled, shown as it comes, and stored however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import UUID

import structlog

from gateway.errors import EngineRejected, EngineUnavailable, InvalidRequest
from gateway.pipeline.events import Ended, Piece, Started
from gateway.pipeline.prompt import Prompt
from gateway.pipeline.recorder import Recorder
from gateway.pipeline.source import Source
from gateway.pipeline.turn import Call, Sampled, joined, turn_record
from gateway.records import Finish, FinishReason, Reply, Sampling, TurnRecord


class Choice:
    """`events` are Started, pieces, and Ended once its turn is durable."""

    def __init__(
        self,
        call: Call,
        *,
        index: int,
        turn_id: UUID,
        source: Source,
        prompt: Prompt,
        sampling: Sampling,
        recorder: Recorder,
        signal: asyncio.Task[None] | None,
    ) -> None:
        self._call = call
        self._index = index
        self._turn_id = turn_id
        self._source = source
        self._prompt = prompt
        self._sampling = sampling
        self._recorder = recorder
        self._signal = signal
        self._queued_ms = call.elapsed_ms()
        self._sampled = Sampled()

    async def events(self) -> AsyncGenerator[Started | Piece | Ended, None]:
        """Closing early aborts the choice and stores what was sampled.

        Raises EngineError, and InvalidRequest for a schema that the engine cannot enforce.

        `signal`, the write of the parent's next state, ends before the turn that carries it.
        """
        source, sampled = self._source, self._sampled
        turn: TurnRecord | None = None
        finish: Finish | None = None
        stored = False
        try:
            async with aclosing(source):
                await self._start()
                structlog.contextvars.bind_contextvars(policy_version=source.version)
                yield Started(
                    turn_id=self._turn_id,
                    session_id=self._call.place.session.id,
                    created_at=self._call.created_at,
                    prompt_tokens=len(self._prompt.ids),
                )
                async for piece, last in source:
                    if sampled.first_token_ms is None:
                        sampled.first_token_ms = self._call.elapsed_ms()
                    sampled.ids += piece.ids
                    sampled.logprobs += piece.logprobs
                    sampled.top += piece.top
                    sampled.streamed += piece.deltas
                    finish = last or finish
                    yield piece
            if finish is None or finish.reason is FinishReason.ABORT:
                detail = finish.detail if finish else None
                raise EngineUnavailable(
                    f"the engine gave up on the reply: {detail or 'no finish'}",
                    engine=source.engine,
                )
            reply = source.reply(sampled.ids)
            turn = self._record(finish, reply)
            if self._signal is not None:
                # It is every choice's, and goes on where one of them is cancelled.
                await asyncio.shield(self._signal)
            await self._recorder.commit(self._call, turn)
            stored = True
            yield self._ended(turn, reply)
        finally:
            if not stored:
                # The client left or the engine died: what was sampled is kept, and says so.
                self._recorder.abandon(self._call, turn or self._aborted())

    async def _start(self) -> None:
        """Raises InvalidRequest where the engine refuses what the client wants enforced."""
        try:
            await self._source.start()
        except EngineRejected as error:
            if self._sampling.grammar is None or "grammar" not in error.message.lower():
                raise
            forced = self._call.request.tool_choice == "required"
            raise InvalidRequest(
                "The schema is invalid, or uses what cannot be enforced.",
                param="tools" if forced else "response_format",
            ) from error

    def _aborted(self) -> TurnRecord | None:
        if not self._source.started:
            return None
        finish = Finish(reason=FinishReason.ABORT, detail="client_left_or_engine_failed")
        return self._record(finish, joined(self._sampled.streamed))

    def _record(self, finish: Finish, reply: Reply) -> TurnRecord:
        return turn_record(
            self._call,
            turn_id=self._turn_id,
            prompt=self._prompt,
            sampling=self._sampling,
            sampled=self._sampled,
            finish=finish,
            reply=reply,
            engine=self._source.engine,
            queued_ms=self._queued_ms,
        )

    def _ended(self, turn: TurnRecord, reply: Reply) -> Ended:
        stopped_by = self._source.stopped_by
        return Ended(
            choice=self._index,
            turn_id=turn.id,
            reply=reply,
            finish_reason=turn.finish_reason,
            stopped_by=stopped_by if stopped_by in self._call.request.sampling.stop else None,
            usage=turn.usage,
            version=self._source.version,
            sampled_ids=tuple(self._sampled.ids),
            logprobs=tuple(self._sampled.logprobs),
            top=tuple(self._sampled.top),
        )
