"""A turn as pieces of text for a judge to read: the request, the reply, all that followed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.records import Message
from judge.config import LlmConfig
from judge.fences import clip
from judge.verdicts import Evidence, content_text

_SHOWN = {
    "image_url": "image", "input_image": "image", "image": "image", "input_audio": "audio",
}  # fmt: skip
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


@dataclass(frozen=True, slots=True)
class Piece:
    """`label` is made of fixed words only; `text` is data."""

    label: str
    text: str


def shown(evidence: Evidence, config: LlmConfig) -> list[Piece]:
    """What every question to an LLM shows it, within the configured bounds."""
    return pieces(
        evidence,
        reasoning=config.show_reasoning,
        text_limit=config.text_chars,
        limit=config.prompt_chars,
    )


def pieces(evidence: Evidence, *, reasoning: bool, text_limit: int, limit: int) -> list[Piece]:
    """Every message in order: `request` ones, the `reply`, the `next` ones, none left out.

    The latter are `instead` where the user discarded the reply.

    Each is cut to `text_limit` characters, or to its share of `limit` where there are many.
    """
    part = "instead" if evidence.discarded else "next"
    found = [
        *_messages("request", evidence.request, reasoning=False),
        Piece("reply", describe(evidence.reply, reasoning=reasoning)),
        *_messages(part, evidence.next_state, reasoning=reasoning),
    ]
    share = min(text_limit, limit // len(found))
    return [Piece(piece.label, clip(piece.text, share)) for piece in found]


def _messages(part: str, messages: tuple[Message, ...], *, reasoning: bool) -> Iterator[Piece]:
    for number, message in enumerate(messages, 1):
        role = message.get("role")
        role = role if isinstance(role, str) and role in _ROLES else "other"
        yield Piece(f"{part} {number} {role}", describe(message, reasoning=reasoning))


def describe(message: Message, *, reasoning: bool) -> str:
    """Reasoning where asked for, text, what is no text by its type, tool calls."""
    lines: list[str] = []
    thought = message.get("reasoning_content")
    if reasoning and isinstance(thought, str) and thought:
        lines.append(f"(thinks) {thought}")
    content = message.get("content")
    if text := content_text(content):
        lines.append(text)
    if isinstance(content, list | tuple):
        lines += [
            _attached(part)
            for part in content
            if isinstance(part, Mapping) and not content_text([part])
        ]
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        lines += [_call(call) for call in calls]
    return "\n".join(lines) or "(empty)"


def _attached(part: Mapping[str, Any]) -> str:
    """What is not text, in a word: judges read and do not see."""
    kind = part.get("type", "unknown")
    known = _SHOWN.get(kind) if isinstance(kind, str) else None
    return f"[{known}]" if known else f"(attached: {kind})"


def _call(call: object) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return "(calls a tool)"
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f"(calls the tool {function.get('name')}) {arguments}"
