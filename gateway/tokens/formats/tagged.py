"""Calls between tags: `open`, a head with the name, a JSON object, `close`."""

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
from gateway.tokens.formats.json_call import ObjectScan, no_call, object_end, plain_name
from gateway.tokens.formats.opened import OpenedReader
from gateway.tokens.stops import held_back


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls:
    """One such form.

    `head` matches from the opening tag up to the arguments' brace, with the group `name`, which
    `spelled` reads. `unordered` reads a block that has no such head. `sign` is what a template
    of this form contains, `begin` and `end` how a forced call is written around its arguments.
    Without `close` a call ends with its arguments. Where each call has a number, it stands before
    what `numbered` says.
    """

    name: str
    open: str
    close: str | None
    head: re.Pattern[str]
    sign: str
    begin: str
    end: str
    separator: str = ""
    opening: str = ""
    closing: str = ""
    wrappers: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    quoted: bool = False
    numbered: str = ""
    spelled: Callable[[str], str | None] = plain_name
    unordered: Callable[[str], tuple[str, str] | None] = no_call
    one_call_stops: tuple[str, ...] = ()
    thought: Thought = THINK

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, *([self.close] if self.close else []), *self.inner)

    @property
    def terminators(self) -> tuple[str, ...]:
        """What ends a call, the close first: it is consumed, another opening is not."""
        return (self.close, self.open) if self.close else (self.open,)

    @property
    def untooled(self) -> None:
        return None

    def fits(self, template: str) -> bool:
        return self.sign in template

    def reader(self, mint: Callable[[], str], schemas: Schemas) -> CallReader:  # noqa: ARG002
        return TaggedReader(self, mint)

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, parallel: bool) -> Tag:
        tags = []
        for tool in tools:
            function = tool["function"]
            name = function["name"]
            spelling = json.dumps(name, ensure_ascii=False) if self.quoted else name
            tag = json_tag(self.begin.replace("NAME", spelling), self.end, function)
            if self.numbered:
                number: list[Tag] = [
                    {"type": "regex", "pattern": r"\d+"},
                    {"type": "const_string", "value": self.numbered},
                ]
                tag["content"] = {"type": "sequence", "elements": [*number, tag["content"]]}
            tags.append(tag)
        return calls_tag(
            tags,
            separator=self.separator,
            parallel=parallel,
            opening=self.opening,
            closing=self.closing,
        )

    def take(self, text: str, schemas: Schemas) -> Taken:  # noqa: ARG002 - JSON has its own types
        parts: list[str] = []
        calls: list[tuple[str, str]] = []
        position, after_call = 0, False
        while True:
            start = text.find(self.open, position)
            plain = text[position:] if start < 0 else text[position:start]
            if after_call:
                plain = plain.lstrip()
            if start < 0:
                return Taken(text="".join([*parts, plain]), calls=tuple(calls))
            block = text[start + len(self.open) :]
            found = self._first(block)
            if found:
                name, arguments, consumed = found
                calls.append((name, arguments))
                parts.append(plain.rstrip())
            else:
                consumed = self._region(block)[1]
                parts.append(plain + self.open + block[:consumed])
            position, after_call = start + len(self.open) + consumed, found is not None

    def _region(self, block: str) -> tuple[str, int]:
        """(what a call that is no call spans, characters used of it with its close)."""
        mark = self.close or self.open
        end = block.find(mark)
        if end < 0:
            return block, len(block)
        return block[:end], end + len(mark) if self.close else end

    def _first(self, block: str) -> tuple[str, str, int] | None:
        """(name, arguments, characters used) of the call that `block` starts with, or None."""
        region, used = self._region(block)
        head = self.head.match(region)
        name = self.spelled(head["name"]) if head else None
        if not head or not name:
            call = self.unordered(region)
            return (*call, used) if call else None
        closed = object_end(block, head.end())
        if closed is None:
            return name, block[head.end() :], len(block)
        arguments = block[head.end() : closed]
        if self.close is None:
            return name, arguments, closed
        to_end, to_next = block.find(self.close, closed), block.find(self.open, closed)
        if to_end >= 0 and not 0 <= to_next < to_end:
            return name, arguments, to_end + len(self.close)
        return name, arguments, to_next if to_next >= 0 else len(block)


class TaggedReader(OpenedReader):
    """Reads one reply in a form of tags as it comes."""

    def __init__(self, form: TaggedCalls, mint: Callable[[], str]) -> None:
        super().__init__(form.open, mint)
        self._form = form
        self._scan = ObjectScan()

    def _in_head(self, final: bool) -> bool:
        form = self._form
        mark = form.close or form.open
        region, closed, rest = self._buffer.partition(mark)
        head = form.head.match(region)
        name = form.spelled(head["name"]) if head else None
        if head and name:
            self._open(name)
            self._buffer = self._buffer[head.end() :]
            self._scan = ObjectScan()
            self._state = self._in_arguments
            return True
        if not closed and not final:
            return False
        if call := form.unordered(region):
            self._open(call[0])
            self._arguments(call[1])
            self._after_call = True
        else:
            self._show(self._before + region + (closed if form.close else ""))
        self._buffer = rest if form.close or not closed else form.open + rest
        self._state = self._in_text
        return bool(self._buffer)

    def _in_arguments(self, _: bool) -> bool:
        end = self._scan.feed(self._buffer)
        self._arguments(self._buffer[:end])
        if end is None:
            self._buffer = ""
            return False
        self._buffer = self._buffer[end:]
        self._after_call = True
        self._state = self._in_tail if self._form.close else self._in_text
        return True

    def _in_tail(self, _: bool) -> bool:
        close, opening = self._form.close or "", self._form.open
        to_end, to_next = self._buffer.find(close), self._buffer.find(opening)
        if to_end < 0 and to_next < 0:
            keep = held_back(self._buffer, close, opening)
            self._buffer = self._buffer[len(self._buffer) - keep :]
            return False
        if to_end >= 0 and not 0 <= to_next < to_end:
            self._buffer = self._buffer[to_end + len(close) :]
        else:
            self._buffer = self._buffer[to_next:]
        self._state = self._in_text
        return True
