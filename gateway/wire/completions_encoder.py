"""Text completions as the OpenAI API writes them, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from gateway.errors import NextstateError
from gateway.records import Delta, FinishReason, Reply, TurnRequest, Usage
from gateway.wire.base import TokenLogprob
from gateway.wire.chat_encoder import error_body, usage_of
from gateway.wire.sse import COMMENT, DONE, event

_encode = msgspec.json.Encoder().encode

#: Clients know no other reasons. What an engine aborted was cut short, as by a limit.
_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "stop",
    FinishReason.ABORT: "length",
}


class CompletionsEncoder:
    """Writes one response. Text offsets count from the start of each choice.

    Where the client wants the prompt's text repeated, each choice begins with that of its own.
    """

    def __init__(self, request: TurnRequest, response_id: UUID, created: int, model: str) -> None:
        self._include_usage = request.include_usage
        self._top = request.top_logprobs
        self._offsets = [0] * request.choices
        self._repeated = _repeated(request)
        self._shared = {
            "id": f"cmpl-{response_id.hex}",
            "object": "text_completion",
            "created": created,
            "model": model,
        }

    def start(self, prompt_tokens: int = 0) -> bytes:  # noqa: ARG002 - other dialects begin with it
        return b"".join(
            self._chunk(self._choice(index, text, ()))
            for index, text in enumerate(self._repeated)
            if text
        )

    def delta(self, choice: int, delta: Delta, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """One chunk; tokens whose text is still held back may come with an empty one."""
        return self._chunk(self._choice(choice, delta.text, logprobs))

    def finish(
        self,
        choice: int,
        reason: FinishReason,
        stopped_by: str | None = None,  # noqa: ARG002 - not told in this dialect
    ) -> bytes:
        return self._chunk(self._choice(choice, "", (), reason))

    def end(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        body = {**self._shared, "choices": [], "usage": usage_of(usage)}
        return event(_encode(body)) + DONE

    def comment(self) -> bytes:
        return COMMENT

    def whole(
        self,
        replies: Sequence[Reply],
        finishes: Sequence[FinishReason],
        usage: Usage,
        logprobs: Sequence[Sequence[TokenLogprob]] = (),
        stopped_by: Sequence[str | None] = (),  # noqa: ARG002 - not told in this dialect
    ) -> bytes:
        choices = [
            self._choice(index, before + reply.text, logprobs[index] if logprobs else (), reason)
            for index, (before, reply, reason) in enumerate(
                zip(self._repeated, replies, finishes, strict=True)
            )
        ]
        return _encode({**self._shared, "choices": choices, "usage": usage_of(usage)})

    def error_event(self, error: NextstateError) -> bytes:
        return event(error_body(error))

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        body: dict[str, Any] = {**self._shared, "choices": [choice]}
        if self._include_usage:
            body["usage"] = None
        return event(_encode(body))

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: Sequence[TokenLogprob],
        reason: FinishReason | None = None,
    ) -> dict[str, Any]:
        return {
            "text": text,
            "index": index,
            "logprobs": self._logprobs(index, logprobs) if logprobs else None,
            "finish_reason": None if reason is None else _REASONS[reason],
        }

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_likeliest(token) for token in tokens] if self._top else None,
            "text_offset": offsets,
        }


def _repeated(request: TurnRequest) -> list[str]:
    """What each choice begins with: the text of its prompt, or nothing."""
    if not request.echo.get("echo"):
        return [""] * request.choices
    texts: Sequence[str] = request.echo["texts"]
    each = request.choices // len(texts)
    return [text for text in texts for _ in range(each)]


def _likeliest(token: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens and the sampled one, by text."""
    return {**{other.text: other.logprob for other in token.top}, token.text: token.logprob}
