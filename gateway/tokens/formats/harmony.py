"""gpt-oss: a reply is several messages, each in a channel that says what it is.

`analysis` is reasoning, `commentary` with a function as its recipient a call, and what is said in
`commentary` to nobody or in `final` is the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tokens.formats.base import (
    THINK,
    CallReader,
    Schemas,
    Tag,
    Taken,
    Thought,
    calls_tag,
    json_tag,
)
from gateway.tokens.formats.channels import ChannelReader, lines, reasoned
from gateway.tokens.stops import held_back

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
_CONSTRAIN = "<|constrain|>"

_HEADS, _TAILS = (_START, _CHANNEL), (_END, _CALL, _RETURN)
_MARKS = (*_HEADS, *_TAILS, _MESSAGE, _CONSTRAIN)
_ANY_MARK = re.compile("({})".format("|".join(map(re.escape, _MARKS))))
_RECIPIENT = re.compile(r"to=functions\.(?P<name>[^\s<]+)")

_ANALYSIS = "analysis"
_NEXT = f"{_START}assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmony:
    """One reading of such replies. Without `tools`, what is said to a function is text.

    Several messages of a kind are lines of one text. A header that does not end is not shown.
    """

    name: str
    tools: bool = True
    marks: tuple[str, ...] = _MARKS
    wrappers: tuple[str, ...] = ()
    one_call_stops: tuple[str, ...] = (_CALL,)
    ends: tuple[str, ...] = (_END, _CALL)
    thought: Thought = THINK

    @property
    def untooled(self) -> Harmony:
        return HARMONY_TALK

    def fits(self, template: str) -> bool:
        return _CHANNEL in template and _ANALYSIS in template

    def reader(self, mint: Callable[[], str], schemas: Schemas) -> CallReader:  # noqa: ARG002
        return HarmonyReader(self, mint)

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, parallel: bool) -> Tag:
        tags = []
        for tool in tools:
            function = tool["function"]
            recipient = f"commentary to=functions.{function['name']} "
            begin = f"{_CHANNEL}{recipient}{_CONSTRAIN}json{_MESSAGE}"
            tags.append(json_tag(begin, _CALL, function))
        return calls_tag(tags, separator=_NEXT, parallel=parallel)

    def is_reasoning(self, message: str) -> bool:
        header, said, _ = message.partition(_MESSAGE)
        return bool(said) and _is_reasoning(header)

    def answered(self, body: Tag) -> Tag:
        opening = {"type": "const_string", "value": f"{_CHANNEL}final{_MESSAGE}"}
        return {"type": "sequence", "elements": [opening, body]}

    def after_reasoning(self, body: Tag) -> Tag:
        return reasoned(f"{_CHANNEL}{_ANALYSIS}{_MESSAGE}", _END, _NEXT, body)

    def called(self, header: str) -> str | None:
        """The function that a message is for, by its header; None where it is for nobody."""
        found = _RECIPIENT.search(header) if self.tools else None
        return found["name"] if found else None

    def take(self, text: str, schemas: Schemas) -> Taken:  # noqa: ARG002 - JSON has its own types
        first, *rest = _ANY_MARK.split(text)
        said, thought, calls = [first], [""], list[tuple[str, str]]()
        header: str | None = None
        place = said
        for mark, piece in zip(rest[::2], rest[1::2], strict=True):
            if header is None and mark in {_MESSAGE, _CONSTRAIN}:
                place[-1] += mark + piece
            elif mark in _TAILS:
                header, place = None, said
                said.append(piece)
            elif mark == _MESSAGE:
                name = self.called(header or "")
                if name is not None:
                    place = [piece]
                    calls.append((name, ""))
                else:
                    place = thought if _is_reasoning(header or "") else said
                    place.append(piece)
                header = None
            else:
                header = (header or "") + mark + piece
            if header is None and calls and place is not said and place is not thought:
                calls[-1] = (calls[-1][0], place[-1])
        return Taken(text=lines(said), reasoning=lines(thought), calls=tuple(calls))


class HarmonyReader(ChannelReader):
    """Reads one reply as it comes."""

    def __init__(self, form: Harmony, mint: Callable[[], str]) -> None:
        super().__init__(mint)
        self._form = form
        self._header: str | None = None
        self._write: Callable[[str], None] = self._say

    def _in_text(self, final: bool) -> bool:
        found = _ANY_MARK.search(self._buffer)
        keep = 0 if found or final else held_back(self._buffer, *_MARKS)
        end = found.start() if found else len(self._buffer) - keep
        self._piece(self._buffer[:end])
        self._buffer = self._buffer[found.end() if found else end :]
        if found:
            self._mark(found[0])
        return bool(found)

    def _piece(self, text: str) -> None:
        if self._header is not None:
            self._header += text
        elif text:
            self._write(text)

    def _mark(self, mark: str) -> None:
        if mark in _HEADS or (mark == _CONSTRAIN and self._header is not None):
            self._header = (self._header or "") + mark
        elif mark in _TAILS:
            self._begin(self._say)
        elif self._header is None:
            self._write(mark)
        elif (name := self._form.called(self._header)) is not None:
            self._open(name)
            self._begin(self._arguments)
        else:
            self._begin(self._think if _is_reasoning(self._header) else self._say)

    def _begin(self, write: Callable[[str], None]) -> None:
        self._header, self._write, self._fresh = None, write, True


def _is_reasoning(header: str) -> bool:
    """Whether a message with this header is in the channel of reasoning."""
    return header.rpartition(_CHANNEL)[2].split()[:1] == [_ANALYSIS] and _CHANNEL in header


HARMONY = Harmony(name="harmony")
HARMONY_TALK = Harmony(name="harmony_talk", tools=False)
