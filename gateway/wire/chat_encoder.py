"""Chat completions as the OpenAI API writes them, whole and in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar
from uuid import UUID

import msgspec

from gateway.errors import NextstateError
from gateway.records import Delta, FinishReason, Reply, TurnRequest, Usage
from gateway.wire.base import TokenLogprob
from gateway.wire.outcome import outcome_of
from gateway.wire.sse import COMMENT, DONE, event

_encode = msgspec.json.Encoder().encode

#: Clients know no other reasons. What an engine aborted was cut short, as by a limit.
_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.ABORT: "length",
}


class ChatEncoder:
    """Writes one response. What all its chunks share is encoded once, as a stream begins."""

    reasons: ClassVar[Mapping[FinishReason, str]] = _REASONS

    def __init__(self, request: TurnRequest, response_id: UUID, created: int, model: str) -> None:
        self._choices = request.choices
        self._include_usage = request.include_usage
        self._shared = {
            "id": f"chatcmpl-{response_id.hex}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }

    @cached_property
    def _head(self) -> bytes:
        """A chunk is head + choice + tail."""
        return b"data: " + _encode(self._shared)[:-1] + b',"choices":['

    @cached_property
    def _tail(self) -> bytes:
        """With usage asked for, all chunks but the last say null."""
        return b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"

    @cached_property
    def _before(self) -> list[bytes]:
        """What comes before the text of a chunk that has nothing else, by choice."""
        return [
            self._head + b'{"index":%d,"delta":{"content":' % choice
            for choice in range(self._choices)
        ]

    @cached_property
    def _after(self) -> bytes:
        """What comes after it."""
        return b'},"logprobs":null,"finish_reason":null}' + self._tail

    def start(self, prompt_tokens: int = 0) -> bytes:  # noqa: ARG002 - other dialects begin with it
        opening = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(choice, opening) for choice in range(self._choices))

    def delta(self, choice: int, delta: Delta, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """One chunk; tokens whose text is still held back may come with an empty delta."""
        if not logprobs and not delta.reasoning and delta.call_index is None:
            return b"".join((self._before[choice], _encode(delta.text), self._after))
        if delta.call_index is not None:
            called = self.called(delta)
            return self._chunk(choice, called, logprobs) if called or logprobs else b""
        fields: dict[str, str] = {}
        if delta.text or not delta.reasoning:
            fields["content"] = delta.text
        if delta.reasoning:
            fields["reasoning_content"] = delta.reasoning
        return self._chunk(choice, fields, logprobs)

    def finish(
        self,
        choice: int,
        reason: FinishReason,
        stopped_by: str | None = None,  # noqa: ARG002 - not told in this dialect
    ) -> bytes:
        return self._chunk(choice, {}, reason=self.reasons[reason])

    def end(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        return event(_encode({**self._shared, "choices": [], "usage": usage_of(usage)})) + DONE

    def comment(self) -> bytes:
        return COMMENT

    def whole(
        self,
        replies: Sequence[Reply],
        finishes: Sequence[FinishReason],
        usage: Usage,
        logprobs: Sequence[Sequence[TokenLogprob]] = (),
        stopped_by: Sequence[str | None] = (),  # noqa: ARG002
    ) -> bytes:
        choices: list[dict[str, Any]] = []
        for index, (reply, reason) in enumerate(zip(replies, finishes, strict=True)):
            choice = {
                "index": index,
                "message": self.message(reply),
                "logprobs": _logprobs(logprobs[index]) if logprobs else None,
                "finish_reason": self.reasons[reason],
            }
            choices.append(choice)
        return _encode(
            {
                **self._shared,
                "object": "chat.completion",
                "choices": choices,
                "usage": usage_of(usage),
            }
        )

    def error_event(self, error: NextstateError) -> bytes:
        return event(error_body(error))

    def message(self, reply: Reply) -> dict[str, Any]:
        """A whole reply, as its client will send it back."""
        message = reply.message()
        message.setdefault("refusal", None)
        return message

    def called(self, delta: Delta) -> dict[str, Any]:
        """What a delta of a call adds to that message; empty for a call that cannot be told."""
        return {"tool_calls": [_call(delta)]}

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        logprobs: Sequence[TokenLogprob] = (),
        reason: str | None = None,
    ) -> bytes:
        body = {
            "index": choice,
            "delta": delta,
            "logprobs": _logprobs(logprobs) if logprobs else None,
            "finish_reason": reason,
        }
        return b"".join((self._head, _encode(body), self._tail))


def error_body(error: NextstateError) -> bytes:
    """`{"error": {message, type, param, code}}`."""
    outcome = outcome_of(error)
    return _encode(
        {
            "error": {
                "message": outcome.message,
                "type": outcome.kind,
                "param": outcome.param,
                "code": outcome.code,
            }
        }
    )


def _call(delta: Delta) -> dict[str, Any]:
    if delta.call_id is None:
        return {"index": delta.call_index, "function": {"arguments": delta.arguments}}
    return {
        "index": delta.call_index,
        "id": delta.call_id,
        "type": "function",
        "function": {"name": delta.call_name, "arguments": delta.arguments},
    }


def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [
        {**_token(token), "top_logprobs": [_token(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


def usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
