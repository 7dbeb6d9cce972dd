"""What a client sees of sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Milliseconds from the arrival of the request."""

    queued_ms: float = 0.0
    first_token_ms: float | None = None
    total_ms: float = 0.0
