"""One chat message, in one form, and what it says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: One chat message in OpenAI form (`role`, `content`, `tool_calls`, …), decoded JSON. Every
#: dialect is turned into this form at the edge; unknown keys are kept for the template.
Message = Mapping[str, Any]

#: Marks of dialects on messages, for what this form has no place for: that one is made of a
#: response's `instructions` (they are not handed on to a response that continues it, and are no
#: input item), and that a tool's result is an error.
INSTRUCTIONS = "instructions"
IS_ERROR = "is_error"

#: OpenClaw tells the model its state in a user message of its own, which it moves behind the
#: newest message at each request: nobody has said it. Such a message begins so.
REMARK = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"


def plain_text(message: Message) -> str:
    """All text of a message, its parts joined."""
    content = message.get("content")
    if type(content) is str:
        return content
    return "".join([part.get("text") or part.get("refusal") or "" for part in content or ()])


def is_remark(message: Message) -> bool:
    """Whether an agent wrote this user message about itself, for the model alone."""
    return message["role"] == "user" and plain_text(message).startswith(REMARK)


def holds_reply(messages: Iterable[Message]) -> bool:
    """Whether the assistant says any of them."""
    for message in messages:  # noqa: SIM110 - a generator costs as much as what it asks
        if message["role"] == "assistant":
            return True
    return False
