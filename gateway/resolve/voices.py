"""Who speaks where in the messages of a request."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.records import DESCRIBED, REMARK, Message, plain_text

SYSTEM = ("system", "developer")


class Voices(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every rule asks of every message, so that they are looked through once.

    `asked` is where people speak and `words` are what they say there, `replies` where the
    assistant does. `apart` are the messages that no chain holds, the system's and an agent's
    remarks, by where they stand. `asks`: the last of all but the remarks is a person's.
    `shows`: some part of a message is described, as images and audio are.
    """

    asked: list[int]
    words: list[str]
    replies: list[int]
    apart: dict[int, Message]
    asks: bool
    shows: bool

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Voices:
        asked: list[int] = []
        words: list[str] = []
        replies: list[int] = []
        apart: dict[int, Message] = {}
        asks = shows = False
        for at, message in enumerate(messages):
            role, content = message["role"], message.get("content")
            for part in content if type(content) is list else ():
                if DESCRIBED in part:
                    shows = True
            if role != "user":
                asks = False
                if role == "assistant":
                    replies.append(at)
                elif role in SYSTEM:
                    apart[at] = message
                continue
            text = content if type(content) is str else plain_text(message)
            if text.startswith(REMARK):
                apart[at] = message
            else:
                asked.append(at)
                words.append(text)
                asks = True
        return cls(asked=asked, words=words, replies=replies, apart=apart, asks=asks, shows=shows)
