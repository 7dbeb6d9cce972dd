"""Calls whose arguments are written one by one between tags, typed by the tool's schema."""

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
    schema_of,
)
from gateway.tokens.formats.opened import any_of
from gateway.tokens.formats.parameter_reader import ParameterReader
from gateway.tokens.formats.typed_values import as_json, is_string


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCalls:
    """One such form.

    `head` matches behind `open`, with the group `name`; `key` begins an argument, with the group
    `key`, and `value_end` ends it. A call ends at `close`. `trim` says that one line break on
    either side of a value is not its own. `style` is the grammar back end's name of the form,
    `content` writes the arguments of a forced call where it has none. `dropped` are texts around
    calls that say nothing and are no tokens of their own. A group `string` of `key` is what the
    model itself says of the argument's type, and stands above the schema.
    """

    name: str
    open: str
    close: str
    head: re.Pattern[str]
    key: re.Pattern[str]
    value_end: str
    signs: tuple[str, ...]
    begin: str
    end: str
    style: str = ""
    content: Callable[[Mapping[str, Any]], Tag] | None = None
    trim: bool = False
    separator: str = "\n"
    opening: str = ""
    closing: str = ""
    wrappers: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    one_call_stops: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    thought: Thought = THINK

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close, *self.inner)

    @property
    def untooled(self) -> None:
        return None

    def fits(self, template: str) -> bool:
        return all(sign in template for sign in self.signs)

    def reader(self, mint: Callable[[], str], schemas: Schemas) -> CallReader:
        return ParameterReader(self, mint, schemas)

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, parallel: bool) -> Tag:
        tags: list[Tag] = [
            {
                "type": "tag",
                "begin": self.begin.replace("NAME", tool["function"]["name"]),
                "content": self._content(schema_of(tool["function"])),
                "end": self.end,
            }
            for tool in tools
        ]
        return calls_tag(
            tags,
            separator=self.separator,
            parallel=parallel,
            opening=self.opening,
            closing=self.closing,
        )

    def _content(self, schema: Mapping[str, Any]) -> Tag:
        if self.content is not None:
            return self.content(schema)
        return {"type": "json_schema", "style": self.style, "json_schema": schema}

    def is_text(self, schema: Mapping[str, Any], key: re.Match[str]) -> bool:
        """Whether the argument that `key` begins is text, whatever it looks like."""
        said = key.groupdict().get("string")
        return is_string(schema, key["key"]) if said is None else said == "true"

    def take(self, text: str, schemas: Schemas) -> Taken:
        parts: list[str] = []
        calls: list[tuple[str, str]] = []
        position, after_call = 0, False
        while True:
            start = text.find(self.open, position)
            plain = text[position:] if start < 0 else text[position:start]
            if self.dropped:
                plain = any_of(self.dropped).sub("", plain)
            if after_call:
                plain = plain.lstrip()
            if start < 0:
                return Taken(text="".join([*parts, plain]), calls=tuple(calls))
            body = start + len(self.open)
            head = self.head.match(text, body)
            after_call = head is not None
            if head is None:
                end = text.find(self.close, body)
                position = len(text) if end < 0 else end + len(self.close)
                parts.append(plain + text[start:position])
                continue
            name = head["name"]
            arguments, position = self._arguments(text, head.end(), schemas.get(name, {}))
            calls.append((name, arguments))
            parts.append(plain.rstrip())

    def _arguments(self, text: str, position: int, schema: Mapping[str, Any]) -> tuple[str, int]:
        """(the arguments that stand from `position` on, where their call ends)."""
        written: list[str] = []
        while True:
            key = self.key.search(text, position)
            end = text.find(self.close, position)
            if end >= 0 and (key is None or end < key.start()):
                return "{" + ", ".join(written) + "}", end + len(self.close)
            if key is None:
                return "{" + ", ".join(written), len(text)
            closed = text.find(self.value_end, key.end())
            value = text[key.end() :] if closed < 0 else text[key.end() : closed]
            if self.trim:
                value = value.removeprefix("\n")
                value = value.removesuffix("\n") if closed >= 0 else value
            name = json.dumps(key["key"], ensure_ascii=False)
            if self.is_text(schema, key):
                said = json.dumps(value, ensure_ascii=False)
                written.append(f"{name}: {said if closed >= 0 else said[:-1]}")
            elif closed >= 0:
                written.append(f"{name}: {as_json(value)}")
            if closed < 0:
                return "{" + ", ".join(written), len(text)
            position = closed + len(self.value_end)
