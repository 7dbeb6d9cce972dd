"""What a response says: its items, its usage, and the object around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from gateway.records import (
    INSTRUCTIONS,
    ORDER,
    Conversation,
    FinishReason,
    Reply,
    ToolCall,
    Usage,
)
from gateway.wire.base import TokenLogprob
from gateway.wire.responses_content import given, plain, result_of
from gateway.wire.responses_ids import Prefix, input_id, output_id, response_id
from gateway.wire.responses_logprobs import Spelling
from gateway.wire.responses_stored import restored, told_usage
from gateway.wire.responses_tools import flat, namespaces_of

Item = dict[str, Any]

_CUT = (FinishReason.LENGTH, FinishReason.ABORT)


def status_of(reason: FinishReason) -> str:
    return "incomplete" if reason in _CUT else "completed"


def response_object(
    turn_id: UUID,
    created: float,
    model: str,
    echo: Mapping[str, Any],
    *,
    status: str,
    output: Sequence[Item] = (),
    usage: Usage | None = None,
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A response. `echo` holds what it repeats of the request."""
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": response_id(turn_id),
        "object": "response",
        "created_at": int(created),
        "status": status,
        "error": error,
        "incomplete_details": cut,
        "model": model,
        "output": list(output),
        "usage": usage_of(usage) if usage else None,
        **echo,
    }


def usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def repeated(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a response repeats, with the original's values for those left open."""
    return {
        "background": False,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": None,
        **asked,
    }


def stored_response(
    conversation: Conversation, tokens: Sequence[TokenLogprob] = ()
) -> dict[str, Any]:
    """A stored turn as the response that it was; `tokens` where they were asked for."""
    fields = conversation.response_fields
    said = _columns(conversation) if fields is None else restored(fields, conversation.tools)
    reasoning = said.get("reasoning") or {}
    reason = conversation.finish_reason
    return response_object(
        conversation.turn_id,
        conversation.created_at,
        conversation.model,
        repeated(said),
        status=status_of(reason),
        output=output_items(
            conversation.turn_id,
            reply_of(conversation.reply),
            reason,
            summary=reasoning.get("summary") is not None,
            spaces=namespaces_of(said.get("tools") or ()),
            logprobs=tokens,
        ),
        usage=told_usage(fields or {}, conversation.usage),
    )


def _columns(conversation: Conversation) -> dict[str, Any]:
    """What there is of a request of which an earlier build stored no more."""
    sampling = conversation.sampling
    asked: dict[str, Any] = {
        "tools": [flat(tool) for tool in conversation.tools],
        "max_output_tokens": sampling.get("max_tokens"),
    }
    for name in ("temperature", "top_p"):
        if name in sampling:
            asked[name] = sampling[name]
    if len(conversation.turns) == 1 and (first := conversation.messages[0]).get(INSTRUCTIONS):
        asked["instructions"] = first["content"]
    return asked


def output_items(
    turn_id: UUID,
    reply: Reply,
    reason: FinishReason = FinishReason.STOP,
    *,
    summary: bool = False,
    spaces: Mapping[str, str] | None = None,
    logprobs: Sequence[TokenLogprob] = (),
) -> list[Item]:
    """The items of a whole reply, those of a stream of it.

    The last one is incomplete where the reply was cut. `logprobs` are of all of its tokens; each
    message tells those of its own.
    """
    items: list[Item] = []
    spelling = Spelling(logprobs)
    for index, part in enumerate(reply.parts() or [Reply()]):
        if part.reasoning:
            id_ = output_id(Prefix.REASONING, turn_id, index)
            spelling.take(part.reasoning)
            items.append(reasoning_item(id_, part.reasoning, "completed", summary=summary))
        elif part.tool_calls:
            [call] = part.tool_calls
            id_ = output_id(Prefix.CALL, turn_id, index)
            spelling.take(call.name)
            items.append(call_item(id_, call, "completed", (spaces or {}).get(call.name)))
        else:
            id_ = output_id(Prefix.MESSAGE, turn_id, index)
            content = [text_part(part.text, spelling.take(part.text))]
            items.append(message_item(id_, content, "completed"))
    items[-1]["status"] = status_of(reason)
    return items


def reasoning_item(id_: str, text: str, status: str, *, summary: bool) -> Item:
    """Reasoning in the open, or in the place of the summary that was asked for."""
    item: Item = {"type": "reasoning", "id": id_, "summary": [], "status": status}
    if summary:
        item["summary"] = [{"type": "summary_text", "text": text}] if text else []
    else:
        item["content"] = [{"type": "reasoning_text", "text": text}] if text else []
    return item


def message_item(id_: str, content: Sequence[Item], status: str) -> Item:
    return {
        "type": "message",
        "id": id_,
        "role": "assistant",
        "status": status,
        "content": list(content),
    }


def call_item(id_: str, call: ToolCall, status: str, namespace: str | None = None) -> Item:
    item: Item = {
        "type": "function_call",
        "id": id_,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": status,
    }
    if namespace is not None:
        item["namespace"] = namespace
    return item


def text_part(text: str, logprobs: Sequence[TokenLogprob] = ()) -> Item:
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": [logprob(token) for token in logprobs],
    }


def logprob(token: TokenLogprob) -> Item:
    return {**_token(token), "top_logprobs": [_token(other) for other in token.top]}


def _token(token: TokenLogprob) -> Item:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


def reply_of(message: Mapping[str, Any]) -> Reply:
    """A stored reply, or an assistant message that a client sent."""
    return Reply(
        text=plain(message.get("content")),
        reasoning=message.get("reasoning_content") or "",
        tool_calls=tuple(
            ToolCall(id=call["id"], **call["function"]) for call in message.get("tool_calls") or ()
        ),
        order=tuple((kind, size) for kind, size in message.get(ORDER) or ()),
    )


def input_items(conversation: Conversation) -> list[Item]:
    """Everything before the reply as items, the oldest first, without `instructions`."""
    items: list[Item] = []
    for turn in conversation.turns:
        count = 0
        for message in turn.messages:
            if not message.get(INSTRUCTIONS):
                found = _given(message, turn.turn_id, count)
                items += found
                count += len(found)
        if turn.turn_id != conversation.turn_id:
            items += output_items(turn.turn_id, reply_of(turn.reply))
    return items


def _given(message: Mapping[str, Any], turn_id: UUID, index: int) -> list[Item]:
    role, content = message["role"], message.get("content")
    if role == "assistant":
        items = output_items(turn_id, reply_of(message))
        for number, item in enumerate(items, index):
            item["id"] = input_id(Prefix(item["id"].partition("_")[0]), turn_id, number)
        return items
    if role == "tool":
        return [
            {
                "type": "function_call_output",
                "id": input_id(Prefix.CALL_OUTPUT, turn_id, index),
                "call_id": message["tool_call_id"],
                "output": result_of(content),
                "status": "completed",
            }
        ]
    return [
        {
            "type": "message",
            "id": input_id(Prefix.MESSAGE, turn_id, index),
            "role": role,
            "status": "completed",
            "content": given(content),
        }
    ]
