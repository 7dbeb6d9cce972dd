"""Chat completions to clients of the old `functions`: one call at most, which has no id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.records import Delta, FinishReason, Reply
from gateway.wire.chat_encoder import ChatEncoder


class FunctionsEncoder(ChatEncoder):
    """Writes `function_call` where others have `tool_calls`.

    A model is told to stop after its first call. One that goes on all the same, as some servers
    let it, has its other calls left out.
    """

    reasons: ClassVar[Mapping[FinishReason, str]] = {
        **ChatEncoder.reasons,
        FinishReason.TOOL_CALLS: "function_call",
    }

    def message(self, reply: Reply) -> dict[str, Any]:
        message = super().message(reply)
        for call in message.pop("tool_calls", [])[:1]:
            message["function_call"] = call["function"]
        return message

    def called(self, delta: Delta) -> dict[str, Any]:
        if delta.call_index:
            return {}
        name = {} if delta.call_id is None else {"name": delta.call_name}
        return {"function_call": {**name, "arguments": delta.arguments}}
