"""Images and audio inside messages.

A part that is no text keeps the form in which chat clients send it (`image_url`, `input_audio`)
and has a description beside it, under `DESCRIBED`: the kind, the type and size of the bytes, and
their SHA-256. The description stays where the data itself is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.records.message import INSTRUCTIONS, IS_ERROR, Message

#: The key of a description in parts of these types, which are built anew at the edge: no client
#: can set it there.
DESCRIBED = "media"
_TYPES = ("image_url", "input_audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """One part. `source` is a data URL, an http(s) URL, or empty where the data was not kept."""

    kind: str
    source: str

    @property
    def is_remote(self) -> bool:
        return not self.source.startswith("data:")


def media_of(messages: Iterable[Message]) -> tuple[Media, ...]:
    """All images and audio of a conversation, in order."""
    found: list[Media] = []
    for message in messages:
        content = message.get("content")
        # Nearly all is text, which is told without a call.
        for part in content if type(content) is list else ():
            if DESCRIBED not in part or not is_media(part):
                continue
            found.append(Media(kind=part[DESCRIBED]["kind"], source=_source(part)))
    return tuple(found)


def described(message: Message) -> list[Mapping[str, Any]]:
    """The parts of a message that hold images or audio."""
    content = message.get("content")
    if type(content) is not list:
        return []
    return [part for part in content if DESCRIBED in part and is_media(part)]


def is_media(part: Mapping[str, Any]) -> bool:
    """Whether a part holds an image or audio."""
    return part.get("type") in _TYPES and DESCRIBED in part


def without_data(messages: Sequence[Message], *, urls: bool = False) -> tuple[Message, ...]:
    """The same messages with the description alone in the place of data.

    Addresses are kept with `urls`. Messages without media are the same objects.
    """
    bare: list[Message] = []
    for message in messages:
        if type(message.get("content")) is list and described(message):
            parts = [_bare(part, urls=urls) for part in message["content"]]
            bare.append({**message, "content": parts})
        else:
            bare.append(message)
    return tuple(bare)


def plain_parts(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same messages without descriptions and marks, as a chat client would have sent them."""
    return tuple(map(_plain, messages))


def _plain(message: Message) -> Message:
    if message.get(INSTRUCTIONS) is True or message.get(IS_ERROR) is True:
        marks = (INSTRUCTIONS, IS_ERROR)
        message = {key: value for key, value in message.items() if key not in marks}
    if not described(message):
        return message
    parts = [
        {key: value for key, value in part.items() if key != DESCRIBED} if is_media(part) else part
        for part in message["content"]
    ]
    return {**message, "content": parts}


def _bare(part: Mapping[str, Any], *, urls: bool) -> Mapping[str, Any]:
    if not is_media(part) or (urls and part[DESCRIBED]["bytes"] is None):
        return part
    return {"type": part["type"], DESCRIBED: part[DESCRIBED]}


def _source(part: Mapping[str, Any]) -> str:
    if "image_url" in part:
        return str(part["image_url"]["url"])
    if "input_audio" in part:
        return f"data:{part[DESCRIBED]['type']};base64,{part['input_audio']['data']}"
    return ""
