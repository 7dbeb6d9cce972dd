"""Input items of the Responses API as chat messages.

A reply travels as several items: reasoning, a message, calls. They become one assistant message
again, the one that was sampled, so that the turn is found whose reply it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn
from uuid import UUID

from gateway.errors import NotFound
from gateway.records import Message
from gateway.wire.json_body import check_depth, invalid, missing, text_in
from gateway.wire.media import MediaReader
from gateway.wire.responses_content import content_of, joined
from gateway.wire.responses_ids import turn_of_item

_ROLES = ("user", "assistant", "system", "developer")

#: How pydantic-ai sends reasoning back, as a message of its own.
_THOUGHT = re.compile(r"\s*<think>\n?(.*?)\n?</think>\s*", re.DOTALL)


#: The type of an item that stands for one of a stored reply.
REFERENCE = "item_reference"


def references(items: str | Sequence[Mapping[str, Any]] | None) -> dict[str, UUID]:
    """The ids of items that are only referred to, and the turns whose replies they are of.

    Raises NotFound for an id that is none of ours.
    """
    found: dict[str, UUID] = {}
    for index, item in enumerate(() if isinstance(items, str) else items or ()):
        if item.get("type") == REFERENCE:
            id_ = text_in(item, "id", f"input[{index}]")
            found[id_] = turn_of_item(id_) or missing_item(id_)
    return found


def last_turn(items: str | Sequence[Mapping[str, Any]] | None) -> UUID | None:
    """The turn that the last reply among the items was, by the ids of its items.

    None where there is no reply, or none with an id of ours.
    """
    replied = False
    for item in reversed(() if isinstance(items, str) else items or ()):
        if item.get("type") == "function_call_output":
            continue
        if (item.get("type") or "message") == "message" and item.get("role") != "assistant":
            if replied:
                return None
            continue
        replied = True
        if (turn := turn_of_item(item.get("id"))) is not None:
            return turn
    return None


def missing_item(id_: str) -> NoReturn:
    """The original's answer to a reference to what it does not have."""
    raise NotFound(f"Item with id '{id_}' not found.", param="input")


def messages_of(
    items: str | Sequence[Mapping[str, Any]], most: int, media: MediaReader | None = None
) -> list[Message]:
    """References must have been replaced; without `media` there is text alone.

    Raises InvalidRequest for an item that is malformed.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if len(items) > most:
        raise invalid("input", f"at most {most} items are allowed", "array_above_max_length")
    conversation = _Conversation(media or MediaReader())
    for index, item in enumerate(items):
        conversation.add(item, f"input[{index}]")
    return conversation.messages


class _Conversation:
    """Messages so far; `_reply` is the assistant message that further items may belong to."""

    def __init__(self, media: MediaReader) -> None:
        self.messages: list[Message] = []
        self._media = media
        self._reply: dict[str, Any] | None = None
        self._turn: UUID | None = None
        self._answered = False

    def add(self, item: Mapping[str, Any], at: str) -> None:
        check_depth(item, at)
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            self._message(item, at)
        elif kind == "reasoning":
            self._reasoning(item, at)
        elif kind == "function_call":
            self._call(item, at)
        elif kind == "function_call_output":
            self._output(item, at)
        elif kind is None:
            raise missing(f"{at}.type")
        else:
            raise invalid(
                f"{at}.type",
                "supported values are 'message', 'reasoning', 'function_call' and "
                "'function_call_output'",
            )

    def _message(self, item: Mapping[str, Any], at: str) -> None:
        role = item.get("role")
        if role is None:
            raise missing(f"{at}.role")
        if role not in _ROLES:
            raise invalid(f"{at}.role", f"supported values are {', '.join(map(repr, _ROLES))}")
        media = self._media if role == "user" else None
        content = content_of(item.get("content"), f"{at}.content", media)
        if role != "assistant":
            self._close()
            self.messages.append({"role": role, "content": content})
            return
        turn = turn_of_item(item.get("id"))
        if isinstance(content, str) and (thought := _THOUGHT.fullmatch(content)):
            self._think(thought[1], turn)
            return
        reply = self._same(turn)
        if reply is None or not (self._names(turn) or _expects_text(reply)):
            reply = self._open(turn)
        reply["content"] = joined(reply["content"], content)

    def _reasoning(self, item: Mapping[str, Any], at: str) -> None:
        self._think(_thoughts(item, at), turn_of_item(item.get("id")))

    def _think(self, text: str, turn: UUID | None) -> None:
        reply = self._same(turn)
        # Ours may stand in parts between what was said.
        ours = reply is not None and self._names(turn)
        if reply is None or not (ours or (reply["content"] is None and "tool_calls" not in reply)):
            reply = self._open(turn)
        if text:
            before = reply.get("reasoning_content", "")
            gap = "\n\n" if before and not ours else ""
            reply["reasoning_content"] = f"{before}{gap}{text}"

    def _call(self, item: Mapping[str, Any], at: str) -> None:
        call = {
            "id": text_in(item, "call_id", at),
            "type": "function",
            "function": {
                "name": text_in(item, "name", at),
                "arguments": text_in(item, "arguments", at),
            },
        }
        turn = turn_of_item(item.get("id"))
        reply = self._same(turn) or self._open(turn)
        reply.setdefault("tool_calls", []).append(call)

    def _output(self, item: Mapping[str, Any], at: str) -> None:
        call_id = text_in(item, "call_id", at)
        if "output" not in item:
            raise missing(f"{at}.output")
        content = content_of(item["output"], f"{at}.output", self._media)
        self._answered = True
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _open(self, turn: UUID | None) -> dict[str, Any]:
        self._reply = {"role": "assistant", "content": None}
        self._turn, self._answered = turn, False
        self.messages.append(self._reply)
        return self._reply

    def _close(self) -> None:
        self._reply = self._turn = None
        self._answered = False

    def _same(self, turn: UUID | None) -> dict[str, Any] | None:
        """The open reply, if an item that names this turn (or none) can be part of it.

        Results of its calls end it, unless the item says that it is of the same turn: some
        clients put each result next to its call.
        """
        if turn is not None and self._turn is not None:
            return self._reply if turn == self._turn else None
        return None if self._answered else self._reply

    def _names(self, turn: UUID | None) -> bool:
        return turn is not None and turn == self._turn


def _expects_text(reply: Mapping[str, Any]) -> bool:
    """Whether a message can be part of it: only reasoning or calls came so far."""
    return reply["content"] is None or "tool_calls" in reply


def _thoughts(item: Mapping[str, Any], at: str) -> str:
    """The reasoning itself where it was shown, else its summary."""
    for key in ("content", "summary"):
        parts = item.get(key) or []
        if not isinstance(parts, list):
            raise invalid(f"{at}.{key}", "expected an array", "invalid_type")
        texts = []
        for index, part in enumerate(parts):
            if not isinstance(part, dict):
                raise invalid(f"{at}.{key}[{index}]", "expected an object", "invalid_type")
            texts.append(text_in(part, "text", f"{at}.{key}[{index}]"))
        if any(texts):
            return "\n\n".join(texts)
    return ""
