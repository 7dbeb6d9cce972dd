"""Input items of the Responses API as chat messages.

A reply travels as several items: reasoning, a message, calls. They become one assistant message
again, the one that was sampled, so that the turn is found whose reply it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn
from uuid import UUID

from gateway.errors import InvalidRequest, NotFound
from gateway.records import Message
from gateway.wire.json_body import check_depth, invalid
from gateway.wire.responses_ids import turn_of_item

_ROLES = ("user", "assistant", "system", "developer")
_MEDIA = {"input_image": "image", "input_audio": "audio", "input_file": "file"}
_TEXT = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}

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
            id_ = _string(item, "id", f"input[{index}]")
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


def messages_of(items: str | Sequence[Mapping[str, Any]], most: int) -> list[Message]:
    """References must have been replaced. Raises InvalidRequest for an item that is malformed."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if len(items) > most:
        raise invalid("input", f"at most {most} items are allowed", "array_above_max_length")
    conversation = _Conversation()
    for index, item in enumerate(items):
        conversation.add(item, f"input[{index}]")
    return conversation.messages


class _Conversation:
    """Messages so far; `_reply` is the assistant message that further items may belong to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
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
            raise _missing(f"{at}.type")
        else:
            raise invalid(
                f"{at}.type",
                "supported values are 'message', 'reasoning', 'function_call' and "
                "'function_call_output'",
            )

    def _message(self, item: Mapping[str, Any], at: str) -> None:
        role = item.get("role")
        if role is None:
            raise _missing(f"{at}.role")
        if role not in _ROLES:
            raise invalid(f"{at}.role", f"supported values are {', '.join(map(repr, _ROLES))}")
        content = _content(item.get("content"), f"{at}.content")
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
        reply["content"] = _joined(reply["content"], content)

    def _reasoning(self, item: Mapping[str, Any], at: str) -> None:
        self._think(_thoughts(item, at), turn_of_item(item.get("id")))

    def _think(self, text: str, turn: UUID | None) -> None:
        reply = self._same(turn)
        if reply is None or reply["content"] is not None or "tool_calls" in reply:
            reply = self._open(turn)
        if text:
            before = reply.get("reasoning_content")
            reply["reasoning_content"] = f"{before}\n\n{text}" if before else text

    def _call(self, item: Mapping[str, Any], at: str) -> None:
        call = {
            "id": _string(item, "call_id", at),
            "type": "function",
            "function": {
                "name": _string(item, "name", at),
                "arguments": _string(item, "arguments", at),
            },
        }
        turn = turn_of_item(item.get("id"))
        reply = self._same(turn) or self._open(turn)
        reply.setdefault("tool_calls", []).append(call)

    def _output(self, item: Mapping[str, Any], at: str) -> None:
        call_id = _string(item, "call_id", at)
        if "output" not in item:
            raise _missing(f"{at}.output")
        content = _content(item["output"], f"{at}.output")
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


def _content(content: object, at: str) -> str | list[dict[str, Any]]:
    if content is None:
        raise _missing(at)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(at, "expected a string or an array of parts", "invalid_type")
    parts = [_part(part, f"{at}[{index}]") for index, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts) and len(parts) < 2:
        return parts[0]["text"] if parts else ""
    return parts


def _part(part: object, at: str) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise invalid(at, "expected an object", "invalid_type")
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA:
        raise InvalidRequest(
            f"This model does not take {_MEDIA[kind]} content.",
            param=f"{at}.type",
            code="unsupported_content",
        )
    if not isinstance(kind, str) or kind not in _TEXT:
        raise invalid(f"{at}.type", "supported values are 'input_text' and 'output_text'")
    key = _TEXT[kind]
    return {"type": key, key: _string(part, key, at)}


def _joined(
    before: str | list[dict[str, Any]] | None, added: str | list[dict[str, Any]]
) -> str | list[dict[str, Any]]:
    if before is None:
        return added
    if isinstance(before, str) and isinstance(added, str):
        return before + added
    return [*_parts(before), *_parts(added)]


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


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
            texts.append(_string(part, "text", f"{at}.{key}[{index}]"))
        if any(texts):
            return "\n\n".join(texts)
    return ""


def _string(holder: Mapping[str, Any], key: str, at: str) -> str:
    value = holder.get(key)
    if value is None:
        raise _missing(f"{at}.{key}")
    if not isinstance(value, str):
        raise invalid(f"{at}.{key}", "expected a string", "invalid_type")
    return value


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )
