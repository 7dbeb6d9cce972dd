"""Gemma 4: `call:`, the name, and arguments in a notation of its own, between two tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tokens.formats.base import (
    CallReader,
    Schemas,
    Tag,
    Taken,
    Thought,
    calls_tag,
    schema_of,
)
from gateway.tokens.formats.gemma4_arguments import QUOTE, as_json_text
from gateway.tokens.formats.gemma4_grammar import arguments_grammar
from gateway.tokens.formats.gemma4_reader import CLOSE, END, HEAD, OPEN, Gemma4Reader

_THOUGHT = Thought(
    open="<|channel>thought",
    close="<channel|>",
    sign="<channel|>",
    marks=("<|channel>", "<channel|>"),
    gap="",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Calls:
    """A call goes from its opening token to its closing one, or to the next that opens."""

    name: str
    marks: tuple[str, ...] = (OPEN, CLOSE, QUOTE)
    wrappers: tuple[str, ...] = ()
    # The second ends every reply with calls.
    one_call_stops: tuple[str, ...] = (CLOSE, "<|tool_response>")
    thought: Thought = _THOUGHT

    @property
    def untooled(self) -> None:
        return None

    def fits(self, template: str) -> bool:
        return OPEN in template

    def reader(self, mint: Callable[[], str], schemas: Schemas) -> CallReader:  # noqa: ARG002
        return Gemma4Reader(mint)

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, parallel: bool) -> Tag:
        tags: list[Tag] = [
            {
                "type": "tag",
                "begin": f"{OPEN}call:{tool['function']['name']}",
                "content": {
                    "type": "grammar",
                    "grammar": arguments_grammar(schema_of(tool["function"])),
                },
                "end": CLOSE,
            }
            for tool in tools
        ]
        return calls_tag(tags, separator="", parallel=parallel)

    def take(self, text: str, schemas: Schemas) -> Taken:  # noqa: ARG002 - types are written
        parts: list[str] = []
        calls: list[tuple[str, str]] = []
        position, after_call = 0, False
        while True:
            start = text.find(OPEN, position)
            plain = text[position:] if start < 0 else text[position:start]
            if after_call:
                plain = plain.lstrip()
            if start < 0:
                return Taken(text="".join([*parts, plain]), calls=tuple(calls))
            body = start + len(OPEN)
            end = END.search(text, body)
            region = text[body : end.start() if end else len(text)]
            position = end.end() if end else len(text)
            head = HEAD.match(region)
            after_call = head is not None
            if head is None:
                parts.append(plain + text[start:position])
                continue
            calls.append((head["name"], as_json_text(region[head.end() :])))
            parts.append(plain.rstrip())


GEMMA4 = Gemma4Calls(name="gemma4")
