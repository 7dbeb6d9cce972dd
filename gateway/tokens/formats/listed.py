"""Calls as JSON objects one after the other, behind a mark or as the whole of a reply."""

from __future__ import annotations

import json
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
from gateway.tokens.formats.json_call import (
    HEAD,
    object_end,
    spelled_name,
    whole_call,
)
from gateway.tokens.formats.listed_reader import BEFORE, BEHIND, FIRST, ListedReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCalls:
    """One such form: `mark` begins calls; where `bare`, so does a brace that begins the reply.

    `key` is what arguments are called. An object with another first key than a call has is text
    from its first character on, so that a JSON answer is not held back.
    """

    name: str
    mark: str
    signs: tuple[str, ...]
    bare: bool
    key: str
    separator: str
    opening: str = ""
    closing: str = ""
    wrappers: tuple[str, ...] = ()
    one_call_stops: tuple[str, ...] = ()
    thought: Thought = THINK

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.mark,)

    @property
    def untooled(self) -> None:
        return None

    def fits(self, template: str) -> bool:
        return any(sign in template for sign in self.signs)

    def reader(self, mint: Callable[[], str], schemas: Schemas) -> CallReader:  # noqa: ARG002
        return ListedReader(self, mint)

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, parallel: bool) -> Tag:
        tags = []
        for tool in tools:
            function = tool["function"]
            name = json.dumps(function["name"], ensure_ascii=False)
            tags.append(json_tag(f'{{"name": {name}, "{self.key}": ', "}", function))
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
        start = len(text) - len(text.lstrip())
        # (where what may be a call begins, its text from there on being shown if it is none;
        # where its brace should be), or None while no call is in sight.
        place = (0, start) if self.bare and text.startswith("{", start) else None
        position = 0
        while True:
            if place is None:
                mark = text.find(self.mark, position)
                if mark < 0:
                    parts.append(text[position:])
                    break
                plain = text[position:mark].rstrip()
                parts.append(plain)
                place = (position + len(plain), _skip(text, mark + len(self.mark), BEFORE))
            shown, brace = place
            found = _first(text, brace)
            if isinstance(found, int):
                parts.append(text[shown:found])
                position, place = found, None
                continue
            name, arguments, end = found
            calls.append((name, arguments))
            position = _skip(text, end, BEHIND)
            place = None
            if text.startswith("{", position):
                place = (position, position)
            elif text.startswith(self.mark, position):
                place = (position, _skip(text, position + len(self.mark), BEFORE))
        return Taken(text="".join(parts), calls=tuple(calls))


def _skip(text: str, position: int, characters: str) -> int:
    """Where something else than these characters stands."""
    return len(text) - len(text[position:].lstrip(characters))


def _first(text: str, brace: int) -> tuple[str, str, int] | int:
    """(name, arguments, its end) of the call at `brace`; up to where there is none otherwise."""
    if not FIRST.match(text, brace):
        return brace
    head = HEAD.match(text, brace)
    name = spelled_name(head["name"]) if head else None
    if head and name:
        closed = object_end(text, head.end())
        if closed is None:
            return name, text[head.end() :], len(text)
        # What is left of the call's own object, as if it opened just before.
        rest = object_end("{" + text[closed:], 0)
        return name, text[head.end() : closed], len(text) if rest is None else closed + rest - 1
    end = object_end(text, brace)
    call = whole_call(text[brace:end], bare=True) if end is not None else None
    if call is None or end is None:
        return len(text) if end is None else end
    return (*call, end)
