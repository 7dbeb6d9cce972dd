"""One choice of a call: sampled, shown as it comes, and stored however it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from uuid import UUID

from gateway.errors import EngineRejected, EngineUnavailable, InvalidRequest
from gateway.pipeline.events import Ended, Listener, Piece, Started
from gateway.pipeline.prompt import Prompt
from gateway.pipeline.recorder import Recorder
from gateway.pipeline.source import Source
from gateway.pipeline.turn import Call, Sampled, joined, turn_record
from gateway.records import Delta, Finish, FinishReason, Reply, Sampling, TurnRecord
from gateway.telemetry import bind


class Choice:
    """`run` it once; its turn is durable when that returns."""

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
        self._queued_until = time.perf_counter()
        self._sampled = Sampled(watched=source.watched)
        self._listener: Listener | None = None

    async def run(self, opening: Started, listener: Listener | None) -> Ended:
        """Tell the listener, if there is one. Being cancelled stores what was sampled.

        Raises EngineError, and InvalidRequest for a schema that the engine cannot enforce.

        `signal`, the write of the parent's next state, ends before the turn that carries it.
        """
        source, sampled, self._listener = self._source, self._sampled, listener
        turn: TurnRecord | None = None
        finish: Finish | None = None
        stored = False
        try:
            try:
                try:
                    await source.start()
                except EngineRejected as error:
                    self._check_asked(error)
                    raise
                version = source.version
                bind(policy_version=version)
                if listener is not None:
                    await listener.started(opening)
                finish = await source.pour(
                    self._took, _at_once if listener is None else listener.ready
                )
            finally:
                await source.aclose()
            if finish is None or finish.reason is FinishReason.ABORT:
                detail = finish.detail if finish else None
                raise EngineUnavailable(
                    f"the engine gave up on the reply: {detail or 'no finish'}",
                    engine=source.engine,
                )
            reply = source.reply(sampled.ids)
            if bool(reply.text) + bool(reply.reasoning) + bool(reply.tool_calls) > 1:
                # In the order in which it was told; what is of one kind needs none.
                reply = reply.ordered(self._told(ended=True))
            turn = self._record(finish, reply)
            if self._signal is not None and not self._signal.done():
                # It is every choice's, and goes on where one of them is cancelled.
                await asyncio.shield(self._signal)
            await self._recorder.commit(self._call, turn)
            stored = True
            ended = self._ended(turn, reply, version)
            if listener is not None:
                await listener.ended(ended)
            return ended
        finally:
            if not stored:
                # The client left or the engine died: what was sampled is kept, and says so.
                self._recorder.abandon(self._call, turn or self._aborted())

    def _took(self, piece: Piece) -> bool:
        sampled, listener = self._sampled, self._listener
        if sampled.first_token_at is None:
            sampled.first_token_at = time.perf_counter()
        sampled.ids += piece.ids
        sampled.logprobs += piece.logprobs
        sampled.top += piece.top
        sampled.kept += piece.kept
        sampled.streamed += piece.deltas
        return True if listener is None else listener.sampled(piece)

    def _check_asked(self, error: EngineRejected) -> None:
        """Raises InvalidRequest where an engine refused what is shown, or to be enforced."""
        if self._sampling.grammar is not None and "grammar" in error.message.lower():
            forced = self._call.request.tool_choice == "required"
            raise InvalidRequest(
                "The schema is invalid, or uses what cannot be enforced.",
                param="tools" if forced else "response_format",
            ) from error
        if self._call.media:
            raise InvalidRequest(error.message, param="messages") from error

    def _told(self, *, ended: bool) -> Sequence[Delta]:
        if self._source.watched:
            return self._sampled.streamed
        return self._source.deltas(self._sampled.ids, ended=ended)

    def _aborted(self) -> TurnRecord | None:
        if not self._source.started:
            return None
        finish = Finish(reason=FinishReason.ABORT, detail="client_left_or_engine_failed")
        return self._record(finish, joined(self._told(ended=False)))

    def _record(self, finish: Finish, reply: Reply) -> TurnRecord:
        return turn_record(
            self._call,
            turn_id=self._turn_id,
            prompt=self._prompt,
            sampling=self._sampling,
            sampled=self._sampled,
            finish=finish,
            reply=reply,
            reasoning_tokens=self._source.reasoning_tokens(self._sampled.ids),
            engine=self._source.engine,
            queued_until=self._queued_until,
        )

    def _ended(self, turn: TurnRecord, reply: Reply, version: int | None) -> Ended:
        stops = self._call.request.sampling.stop
        stopped_by = self._source.stopped_by if stops else None
        return Ended(
            choice=self._index,
            turn_id=turn.id,
            reply=reply,
            finish_reason=turn.finish_reason,
            stopped_by=stopped_by if stopped_by in stops else None,
            usage=turn.usage,
            version=version,
            sampled_ids=tuple(self._sampled.ids),
            logprobs=tuple(self._sampled.logprobs),
            top=tuple(self._sampled.top),
        )


async def _at_once() -> None:
    """Nobody listens, who could be behind."""
