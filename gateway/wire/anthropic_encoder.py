"""Messages as the Anthropic API writes them, whole and as events."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from gateway.errors import NextstateError
from gateway.records import Delta, FinishReason, Reply, Usage
from gateway.wire import anthropic_errors
from gateway.wire.anthropic_blocks import UNPARSED, input_of
from gateway.wire.base import TokenLogprob
from gateway.wire.json_prefix import JsonPrefix
from gateway.wire.sse import COMMENT, event

_encode = msgspec.json.Encoder().encode

#: Clients know no other reasons. What an engine aborted was cut short, as by a limit.
_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.ABORT: "max_tokens",
}


class MessageEncoder:
    """Writes one message. A stream's blocks follow one another: one is open at a time."""

    def __init__(self, response_id: UUID, model: str) -> None:
        self._id = response_id
        self._model = model
        # Opaque to clients, which send it back along with the thinking that it stands under.
        self._signature = b64encode(response_id.bytes).decode()
        self._index = -1
        self._open: str | int | None = None
        self._arguments: JsonPrefix | None = None
        self._ending: tuple[str, str | None] = ("end_turn", None)

    def start(self, prompt_tokens: int = 0) -> bytes:
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=0)
        message = self._message([], None, None, usage)
        return _event("message_start", message=message) + _event("ping")

    def delta(
        self,
        choice: int,  # noqa: ARG002 - this dialect has one
        delta: Delta,
        logprobs: Sequence[TokenLogprob] = (),  # noqa: ARG002 - not told in this dialect
    ) -> bytes:
        frames = b""
        if delta.reasoning:
            frames += self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            frames += self._add({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.text:
            frames += self._enter("text", {"type": "text", "text": ""})
            frames += self._add({"type": "text_delta", "text": delta.text})
        if delta.call_index is not None:
            frames += self._call(delta, delta.call_index)
        return frames

    def finish(
        self,
        choice: int,  # noqa: ARG002
        reason: FinishReason,
        stopped_by: str | None = None,
    ) -> bytes:
        self._ending = _ending(reason, stopped_by)
        return self._leave()

    def end(self, usage: Usage) -> bytes:
        reason, sequence = self._ending
        ending = {"stop_reason": reason, "stop_sequence": sequence}
        return _event("message_delta", delta=ending, usage=_usage(usage)) + _event("message_stop")

    def comment(self) -> bytes:
        return COMMENT

    def whole(
        self,
        replies: Sequence[Reply],
        finishes: Sequence[FinishReason],
        usage: Usage,
        logprobs: Sequence[Sequence[TokenLogprob]] = (),  # noqa: ARG002
        stopped_by: Sequence[str | None] = (),
    ) -> bytes:
        content = [self._block(part) for part in replies[0].parts()]
        reason, sequence = _ending(finishes[0], stopped_by[0] if stopped_by else None)
        return _encode(self._message(content, reason, sequence, usage))

    def error_event(self, error: NextstateError) -> bytes:
        return event(anthropic_errors.body(error), "error")

    def _block(self, part: Reply) -> dict[str, Any]:
        if part.reasoning:
            return {"type": "thinking", "thinking": part.reasoning, "signature": self._signature}
        if part.text:
            return {"type": "text", "text": part.text}
        [call] = part.tool_calls
        return {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": input_of(call.arguments),
        }

    def _call(self, delta: Delta, index: int) -> bytes:
        frames = b""
        if self._open != index:
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": delta.call_id,
                "name": delta.call_name,
                "input": {},
            }
            frames = self._enter(index, block)
            self._arguments = JsonPrefix(UNPARSED)
        assert self._arguments is not None, "a call is open"
        return frames + self._json(self._arguments.feed(delta.arguments))

    def _json(self, fragment: str) -> bytes:
        if not fragment:
            return b""
        return self._add({"type": "input_json_delta", "partial_json": fragment})

    def _enter(self, kind: str | int, block: dict[str, Any]) -> bytes:
        """Open a block of another kind than the one that is open, and close that."""
        if self._open == kind:
            return b""
        closed = self._leave()
        self._index += 1
        self._open = kind
        return closed + _event("content_block_start", index=self._index, content_block=block)

    def _leave(self) -> bytes:
        kind, self._open = self._open, None
        if kind is None:
            return b""
        frames = b""
        if kind == "thinking":
            frames += self._add({"type": "signature_delta", "signature": self._signature})
        if self._arguments is not None:
            frames += self._json(self._arguments.finish())
            self._arguments = None
        return frames + _event("content_block_stop", index=self._index)

    def _add(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _message(
        self,
        content: list[dict[str, Any]],
        reason: str | None,
        sequence: str | None,
        usage: Usage,
    ) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id.hex}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": _usage(usage),
        }


def _event(name: str, **fields: Any) -> bytes:
    return event(_encode({"type": name, **fields}), name)


def _ending(reason: FinishReason, stopped_by: str | None) -> tuple[str, str | None]:
    if reason is FinishReason.STOP and stopped_by is not None:
        return "stop_sequence", stopped_by
    return _REASONS[reason], None


def _usage(usage: Usage) -> dict[str, Any]:
    """In this dialect ids that were read from the cache are counted apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
