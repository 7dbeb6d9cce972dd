"""Responses as the OpenAI API writes them, whole and as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from gateway.errors import ContextTooLong, EngineOverloaded, NextstateError, TooManyRequests
from gateway.records import Delta, FinishReason, Reply, TurnRequest, Usage
from gateway.wire.base import TokenLogprob
from gateway.wire.outcome import outcome_of
from gateway.wire.responses_ids import Prefix, output_id
from gateway.wire.responses_logprobs import Spelling
from gateway.wire.responses_output import Item, output_items, response_object, status_of
from gateway.wire.responses_parts import CallPart, Event, MessagePart, Part, ReasoningPart
from gateway.wire.sse import COMMENT, event

_encode = msgspec.json.Encoder().encode


class ResponsesEncoder:
    """Writes one response; items follow one another, as clients expect.

    Text after a tool call is an item of its own.
    """

    def __init__(self, request: TurnRequest, response_id: UUID, created: int, model: str) -> None:
        self._turn_id = response_id
        self._created = created
        self._model = model
        echo = request.echo
        self._summary: bool = echo["summary"]
        self._spaces: Mapping[str, str] = echo["namespaces"]
        # Instructions and tools are long, and three events repeat them.
        self._repeated = {
            name: msgspec.Raw(_encode(value)) for name, value in echo["response"].items()
        }
        self._sequence = 0
        self._done: list[Item] = []
        self._part: Part | None = None
        #: Where log-probabilities were asked for, and where in it the part began.
        self._spelling = None if request.top_logprobs is None else Spelling()
        self._began = 0
        self._status = "completed"

    def start(self, prompt_tokens: int = 0) -> bytes:  # noqa: ARG002 - other dialects begin with it
        response = self._response(status="in_progress")
        return self._events(
            [
                ("response.created", {"response": response}),
                ("response.in_progress", {"response": response}),
            ]
        )

    def delta(self, choice: int, delta: Delta, logprobs: Sequence[TokenLogprob] = ()) -> bytes:  # noqa: ARG002 - there is one choice
        """Events for one delta, which comes with every token that was sampled until then."""
        frames = b""
        if self._spelling is not None:
            self._spelling.add(logprobs)
        for single in _singles(delta):
            if not single:
                continue
            if self._part is None or not self._part.takes(single):
                frames += self._close("completed") + self._open(single)
            assert self._part is not None
            told = self._spelling.more(single.text) if self._spelling and single.text else ()
            frames += self._item_events(self._part.extend(single, told))
        return frames

    def finish(
        self,
        choice: int,  # noqa: ARG002 - there is one choice
        reason: FinishReason,
        stopped_by: str | None = None,  # noqa: ARG002 - this protocol has no place for it
    ) -> bytes:
        self._status = status_of(reason)
        frames = b""
        if self._part is None:
            frames = self._open(Delta())
        return frames + self._close(self._status)

    def end(self, usage: Usage) -> bytes:
        response = self._response(status=self._status, output=self._done, usage=usage)
        return self._events([(f"response.{self._status}", {"response": response})])

    def comment(self) -> bytes:
        return COMMENT

    def whole(
        self,
        replies: Sequence[Reply],
        finishes: Sequence[FinishReason],
        usage: Usage,
        logprobs: Sequence[Sequence[TokenLogprob]] = (),
        stopped_by: Sequence[str | None] = (),  # noqa: ARG002 - this protocol has no place for it
    ) -> bytes:
        [reply], [reason] = replies, finishes
        output = output_items(
            self._turn_id,
            reply,
            reason,
            summary=self._summary,
            spaces=self._spaces,
            logprobs=logprobs[0] if logprobs else (),
        )
        return _encode(self._response(status=status_of(reason), output=output, usage=usage))

    def error_event(self, error: NextstateError) -> bytes:
        """`response.failed`, after what has to come before it."""
        frames = b"" if self._sequence else self.start()
        frames += self._close("incomplete")
        outcome = outcome_of(error)
        failure = {"code": _failure_code(error, outcome.status), "message": outcome.message}
        response = self._response(status="failed", output=self._done, error=failure)
        return frames + self._events([("response.failed", {"response": response})])

    def _response(
        self,
        *,
        status: str,
        output: Sequence[Item] = (),
        usage: Usage | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        return response_object(
            self._turn_id,
            self._created,
            self._model,
            self._repeated,
            status=status,
            output=output,
            usage=usage,
            error=error,
        )

    def _open(self, delta: Delta) -> bytes:
        index = len(self._done)
        if self._spelling is not None:
            self._began = self._spelling.at
        if delta.call_index is not None:
            id_ = output_id(Prefix.CALL, self._turn_id, index)
            self._part = CallPart(id_, delta, self._spaces.get(delta.call_name or ""))
        elif delta.reasoning:
            id_ = output_id(Prefix.REASONING, self._turn_id, index)
            self._part = ReasoningPart(id_, summary=self._summary)
        else:
            self._part = MessagePart(output_id(Prefix.MESSAGE, self._turn_id, index))
        return self._item_events(self._part.open())

    def _close(self, status: str) -> bytes:
        part = self._part
        if part is None:
            return b""
        if self._spelling is not None:
            self._spelling.at = self._began
            part.logprobs = self._spelling.take(part.sampled)
        frames = self._item_events(part.close(status))
        self._done.append(part.item(status))
        self._part = None
        return frames

    def _item_events(self, events: Iterable[Event]) -> bytes:
        index = len(self._done)
        return self._events((kind, {"output_index": index, **fields}) for kind, fields in events)

    def _events(self, events: Iterable[Event]) -> bytes:
        frames = b""
        for kind, fields in events:
            body = {"type": kind, "sequence_number": self._sequence, **fields}
            frames += event(_encode(body), kind)
            self._sequence += 1
        return frames


def _singles(delta: Delta) -> list[Delta]:
    """A delta as one or two that each belong to one item."""
    if delta.call_index is None and delta.reasoning and delta.text:
        return [Delta(reasoning=delta.reasoning), Delta(text=delta.text)]
    return [delta]


def _failure_code(error: NextstateError, status: int) -> str:
    """The words that clients of this protocol know."""
    if isinstance(error, ContextTooLong):
        return "context_length_exceeded"
    if isinstance(error, TooManyRequests | EngineOverloaded):
        return "rate_limit_exceeded"
    return "server_error" if status >= 500 else "invalid_prompt"
