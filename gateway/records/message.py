"""One chat message, in one form, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
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
#: newest message at each request: nobody has said it.
_REMARK = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"


def plain_text(message: Message) -> str:
    """All text of a message, its parts joined."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content or ())


def is_remark(message: Message) -> bool:
    """Whether an agent wrote this user message about itself, for the model alone."""
    if message["role"] != "user":
        return False
    content = message.get("content")
    # Nearly all are plain strings, and every message is asked several times.
    text = content if isinstance(content, str) else plain_text(message)
    return text.startswith(_REMARK)
