"""Inkling: a reply is several messages, each with a mark of what it is.

Before the mark of a call stands its name, which the call's JSON says again. What has no mark is
text.
"""

from __future__ import annotations

import json
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
from gateway.tokens.formats.json_call import (
    ObjectScan,
    head_of,
    object_end,
    spelled_name,
    whole_call,
)
from gateway.tokens.stops import held_back

_MODEL, _END = "<|message_model|>", "<|end_message|>"
_TEXT, _THINKING = "<|content_text|>", "<|content_thinking|>"
_INVOKE = "<|content_invoke_tool_json|>"
_MARKS = (_MODEL, _END, _TEXT, _THINKING, _INVOKE)
_ANY_MARK = re.compile("({})".format("|".join(map(re.escape, _MARKS))))

_HEAD = head_of("args")
#: What may yet become the name of a call. The beginnings of such a text are such texts too.
_NAME = re.compile(r"\s*[^\s<]{0,64}\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inkling:
    """One reading of such replies. Without `tools`, what is written for a function is text.

    Every message ends alike. Where one call is allowed, sampling stops behind a message that ends
    in a brace and has another after it: nothing that is only a call's says that it ends.
    """

    name: str
    tools: bool = True
    marks: tuple[str, ...] = _MARKS
    wrappers: tuple[str, ...] = ()
    one_call_stops: tuple[str, ...] = ("}" + _END + _MODEL,)
    ends: tuple[str, ...] = (_END,)
    thought: Thought = THINK

    @property
    def untooled(self) -> Inkling:
        return INKLING_TALK

    def fits(self, template: str) -> bool:
        return _INVOKE in template

    def reader(self, mint: Callable[[], str], schemas: Schemas) -> CallReader:  # noqa: ARG002
        return InklingReader(self, mint)

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, parallel: bool) -> Tag:
        tags = []
        for tool in tools:
            function = tool["function"]
            name = function["name"]
            quoted = json.dumps(name, ensure_ascii=False)
            begin = f'{name}{_INVOKE}{{"name":{quoted},"args":'
            tags.append(json_tag(begin, "}" + _END, function))
        return calls_tag(tags, separator=_MODEL, parallel=parallel)

    def is_reasoning(self, message: str) -> bool:
        return message.lstrip().removeprefix(_MODEL).lstrip().startswith(_THINKING)

    def answered(self, body: Tag) -> Tag:
        opening = {"type": "const_string", "value": _TEXT}
        return {"type": "sequence", "elements": [opening, body]}

    def after_reasoning(self, body: Tag) -> Tag:
        return reasoned(_THINKING, _END, _MODEL, body)

    def take(self, text: str, schemas: Schemas) -> Taken:  # noqa: ARG002 - JSON has its own types
        # The prompt ends with the mark that opens a message.
        parts = [_MODEL, *_ANY_MARK.split(text), ""]
        said, thought, calls = list[str](), list[str](), list[tuple[str, str]]()
        for mark, piece, following in zip(parts[:-1:2], parts[1::2], parts[2::2], strict=True):
            call = _called(piece) if mark == _INVOKE and self.tools else None
            if call is not None:
                calls.append(call)
            elif mark == _THINKING:
                thought.append(piece)
            elif mark in {_TEXT, _INVOKE} or not _is_header(piece, following):
                said.append(piece)
        return Taken(text=lines(said), reasoning=lines(thought), calls=tuple(calls))


def _is_header(piece: str, following: str) -> bool:
    """Whether what stands before any mark of its message is no text."""
    return not piece.strip() or (following == _INVOKE and _NAME.fullmatch(piece) is not None)


def _called(body: str) -> tuple[str, str] | None:
    """(name, arguments as far as they go) of a call's JSON."""
    head = _HEAD.match(body)
    name = spelled_name(head["name"]) if head else None
    if head and name:
        return name, body[head.end() : object_end(body, head.end())]
    return whole_call(body, key="args")


class InklingReader(ChannelReader):
    """Reads one reply as it comes."""

    def __init__(self, form: Inkling, mint: Callable[[], str]) -> None:
        super().__init__(mint)
        self._form = form
        #: What was written in a message before any mark, or of a call before its arguments.
        self._held = ""
        self._scan: ObjectScan | None = None
        self._write: Callable[[str], None] = self._unmarked
        self._done: Callable[[str], None] = self._no_name

    def _in_text(self, final: bool) -> bool:
        found = _ANY_MARK.search(self._buffer)
        keep = 0 if found or final else held_back(self._buffer, *_MARKS)
        end = found.start() if found else len(self._buffer) - keep
        if end:
            self._write(self._buffer[:end])
        self._buffer = self._buffer[found.end() if found else end :]
        if found or final:
            self._done(found[0] if found else "")
            self._begin(found[0] if found else _MODEL)
        return bool(found)

    def _begin(self, mark: str) -> None:
        self._held, self._fresh, self._scan = "", True, None
        self._done = _nothing
        if mark in {_MODEL, _END}:
            self._write, self._done = self._unmarked, self._no_name
        elif mark == _THINKING:
            self._write = self._think
        elif mark == _INVOKE and self._form.tools:
            self._write, self._done = self._call, self._no_call
        else:
            self._write = self._say

    def _unmarked(self, text: str) -> None:
        self._held += text
        if not _NAME.fullmatch(self._held):
            self._say(self._held)
            self._write, self._done = self._say, _nothing

    def _no_name(self, following: str) -> None:
        if self._held.strip() and following != _INVOKE:
            self._say(self._held)

    def _call(self, text: str) -> None:
        if self._scan is None:
            self._held += text
            head = _HEAD.match(self._held)
            name = spelled_name(head["name"]) if head else None
            if not head or not name:
                return
            self._open(name)
            self._scan, text = ObjectScan(), self._held[head.end() :]
            self._done = _nothing
        end = self._scan.feed(text)
        self._arguments(text[:end])
        if end is not None:
            self._write = _nothing

    def _no_call(self, _: str) -> None:
        if call := whole_call(self._held, key="args"):
            self._open(call[0])
            self._arguments(call[1])
        elif self._held:
            self._say(self._held)


def _nothing(_: str) -> None:
    """What comes is not shown."""


INKLING = Inkling(name="inkling")
INKLING_TALK = Inkling(name="inkling_talk", tools=False)
