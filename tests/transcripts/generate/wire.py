"""How clients write a conversation down: three dialects, and what each client does to them.

A conversation is neutral here: `said` by a user, `replied` by the model, `returned` by a tool.
Nothing in this package looks at the gateway's rules: it follows what clients were seen to send.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments: dict[str, Any]
    #: As the model wrote it.
    text: str


@dataclass(frozen=True, slots=True)
class Said:
    text: str


@dataclass(frozen=True, slots=True)
class Replied:
    text: str
    calls: tuple[Call, ...] = ()
    reasoning: str = ""

    def as_message(self) -> Body:
        """The reply as the gateway gave it, for the replay."""
        message: Body = {"role": "assistant", "content": self.text or None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.text},
                }
                for call in self.calls
            ]
        return message


@dataclass(frozen=True, slots=True)
class Returned:
    call: Call
    text: str


Entry = Said | Replied | Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """A client's handwriting.

    `arguments`: verbatim, spaced, compact or sorted. `empty` is what it writes for a reply without
    text: null, "" or nothing. `ids` may drop what is no letter or digit. `as_text` writes calls
    and results as prose.
    """

    dialect: str = "chat"
    arguments: str = "verbatim"
    empty: str = "null"
    strip_ids: bool = False
    keeps_reasoning: bool = False
    parts: bool = False
    strip_text: bool = False
    as_text: bool = False
    first_call_only: bool = False
    cache_marks: bool = False
    system_role: str = "system"
    remark: str = ""
    extra: Body = field(default_factory=dict)


PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


def body_of(
    hand: Hand, system: str, entries: Sequence[Entry], tools: Sequence[str], **more: Any
) -> Body:
    """A request's body."""
    write = {"chat": _chat, "messages": _messages, "responses": _responses}[hand.dialect]
    return {**hand.extra, **write(hand, system, entries, tools), **more}


def _arguments(hand: Hand, call: Call) -> str:
    if hand.arguments == "spaced":
        return json.dumps(call.arguments, ensure_ascii=False)
    if hand.arguments == "compact":
        return json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
    if hand.arguments == "sorted":
        return json.dumps(call.arguments, sort_keys=True, separators=(",", ":"))
    return call.text


def _id(hand: Hand, call: Call) -> str:
    return call.id.replace("_", "") if hand.strip_ids else call.id


def _content(hand: Hand, text: str) -> Any:
    return [{"type": "text", "text": text}] if hand.parts else text


def _chat(hand: Hand, system: str, entries: Sequence[Entry], tools: Sequence[str]) -> Body:
    messages: list[Body] = []
    if system:
        messages.append({"role": hand.system_role, "content": _content(hand, system)})
    for entry in entries:
        if isinstance(entry, Said):
            messages.append({"role": "user", "content": _content(hand, entry.text)})
        elif isinstance(entry, Returned):
            if hand.as_text:
                messages.append(
                    {"role": "user", "content": _content(hand, f"Observation:\n{entry.text}")}
                )
            else:
                messages.append(
                    {"role": "tool", "tool_call_id": _id(hand, entry.call), "content": entry.text}
                )
        else:
            messages.append(_chat_reply(hand, entry))
    if hand.remark:
        messages.append({"role": "user", "content": [{"type": "text", "text": hand.remark}]})
    body: Body = {"messages": messages}
    if tools:
        body["tools"] = [{"type": "function", "function": {"name": name}} for name in tools]
    return body


def _chat_reply(hand: Hand, entry: Replied) -> Body:
    text = entry.text.rstrip() if hand.strip_text else entry.text
    if hand.as_text and entry.calls:
        listed = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in sorted(entry.calls, key=lambda call: call.id)
        ]
        return {"role": "assistant", "content": _content(hand, f"Calling tools:\n{listed!r}")}
    message: Body = {"role": "assistant"}
    if text:
        message["content"] = _content(hand, text)
    elif hand.empty != "absent":
        message["content"] = None if hand.empty == "null" else ""
    if hand.keeps_reasoning and entry.reasoning:
        message["reasoning_content"] = entry.reasoning
    calls = entry.calls[:1] if hand.first_call_only else entry.calls
    if calls:
        message["tool_calls"] = [
            {
                "id": _id(hand, call),
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(hand, call)},
            }
            for call in calls
        ]
    return message


def _messages(hand: Hand, system: str, entries: Sequence[Entry], tools: Sequence[str]) -> Body:
    messages: list[Body] = []

    def add(role: str, block: Body) -> None:
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"].append(block)
        else:
            messages.append({"role": role, "content": [block]})

    for entry in entries:
        if isinstance(entry, Said):
            add("user", {"type": "text", "text": entry.text})
        elif isinstance(entry, Returned):
            add(
                "user",
                {"type": "tool_result", "tool_use_id": entry.call.id, "content": entry.text},
            )
        else:
            for block in _blocks(entry):
                add("assistant", block)
    if hand.cache_marks and messages[-1]["role"] == "user":
        messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    body: Body = {"messages": messages, "max_tokens": 4096}
    if system:
        body["system"] = [{"type": "text", "text": system}]
    if tools:
        body["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in tools]
    return body


def _blocks(entry: Replied) -> list[Body]:
    blocks: list[Body] = []
    if entry.reasoning:
        blocks.append({"type": "thinking", "thinking": entry.reasoning, "signature": "c2ln"})
    if entry.text:
        blocks.append({"type": "text", "text": entry.text})
    return blocks + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in entry.calls
    ]


def _responses(hand: Hand, system: str, entries: Sequence[Entry], tools: Sequence[str]) -> Body:
    items: list[Body] = []
    for number, entry in enumerate(entries):
        if isinstance(entry, Said):
            part = {"type": "input_text", "text": entry.text}
            items.append({"type": "message", "role": "user", "content": [part]})
        elif isinstance(entry, Returned):
            items.append(
                {"type": "function_call_output", "call_id": entry.call.id, "output": entry.text}
            )
        else:
            if hand.keeps_reasoning and entry.reasoning:
                summary = [{"type": "summary_text", "text": entry.reasoning}]
                items.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
            if entry.text:
                part = {"type": "output_text", "text": entry.text}
                items.append({"type": "message", "role": "assistant", "content": [part]})
            items += [
                {
                    "type": "function_call",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": _arguments(hand, call),
                }
                for call in entry.calls
            ]
    body: Body = {"input": items}
    if system:
        body["instructions"] = system
    if tools:
        body["tools"] = [
            {"type": "function", "name": name, "parameters": {"type": "object"}} for name in tools
        ]
    return body
