"""What a client sees of sampled tokens."""

from __future__ import annotations

from typing import Any

import msgspec


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    name: str
    arguments: str


class Delta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What newly sampled tokens add to the reply that a client sees.

    `call_index` with `call_id` and `call_name` opens a tool call, with `arguments` extends it.
    """

    text: str = ""
    reasoning: str = ""
    call_index: int | None = None
    call_id: str | None = None
    call_name: str | None = None
    arguments: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.call_index is not None)


class Reply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole assistant reply, parsed from its ids."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def message(self) -> dict[str, Any]:
        """The assistant message in OpenAI form, as clients will send it back."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["content"] = self.text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`reasoning_tokens` are among the completion's, `cached_tokens` among the prompt's."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Milliseconds from the arrival of the request."""

    queued_ms: float = 0.0
    first_token_ms: float | None = None
    total_ms: float = 0.0
