"""How a model writes reasoning and tool calls, and the whole-text parser of each form."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
TAGS = (THINK, THINK_END, CALL, CALL_END)

#: Everything of a call before its arguments, if they are an object and come last.
CALL_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"(?P<name>(?:[^"\\]|\\.)+)"\s*,\s*"arguments"\s*:\s*(?=\{)', re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """`think`: a leading `<think>…</think>` is reasoning. `tools`: Hermes calls are tool calls.

    `prefilled`: the prompt has opened the reasoning already. With none of them the reply is plain.
    """

    think: bool = False
    tools: bool = False
    prefilled: bool = False

    @classmethod
    def of(cls, template: str, *, prompt_end: str, tools: bool) -> ReplyFormat:
        """The form that a chat template prompts for.

        `prompt_end` is the text of the prompt's last few ids; `tools` whether calls are allowed.
        """
        think = THINK_END in template
        return cls(
            think=think,
            tools=tools and CALL in template and "<function=" not in template,
            prefilled=think and prompt_end.rstrip().endswith(THINK),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReply:
    """A reply taken apart; `calls` are (name, arguments as JSON text)."""

    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()


def split(text: str, form: ReplyFormat) -> SplitReply:
    """Take a whole reply apart. The incremental splitter is held to this."""
    reasoning = ""
    opened = form.think and text.lstrip().startswith(THINK)
    if form.prefilled or opened:
        body = text if form.prefilled else text.lstrip()[len(THINK) :]
        head, _, rest = body.partition(THINK_END)
        reasoning, text = head.strip("\n"), rest.lstrip("\n")
    if not form.tools:
        return SplitReply(text=text, reasoning=reasoning)
    parts: list[str] = []
    calls: list[tuple[str, str]] = []
    position, after_call = 0, False
    while True:
        start = text.find(CALL, position)
        plain = text[position:] if start < 0 else text[position:start]
        if after_call:
            plain = plain.lstrip()
        if start < 0:
            return SplitReply(
                text="".join([*parts, plain]), reasoning=reasoning, calls=tuple(calls)
            )
        block = text[start + len(CALL) :]
        found = _first_call(block)
        if found:
            name, arguments, consumed = found
            calls.append((name, arguments))
            parts.append(plain.rstrip())
        else:
            end = block.find(CALL_END)
            consumed = len(block) if end < 0 else end + len(CALL_END)
            parts.append(plain + CALL + block[:consumed])
        position, after_call = start + len(CALL) + consumed, found is not None


def _first_call(block: str) -> tuple[str, str, int] | None:
    """(name, arguments, characters used) of the call that `block` starts with, or None."""
    end = block.find(CALL_END)
    region = block if end < 0 else block[:end]
    head = CALL_HEAD.match(region)
    name = call_name(head["name"]) if head else None
    if head and name:
        closed = _object_end(block, head.end())
        if closed is None:
            return name, block[head.end() :], len(block)
        marks = [(block.find(mark, closed), len(mark)) for mark in (CALL_END, CALL)]
        (to_end, skip), (to_next, _) = marks
        if to_end >= 0 and not 0 <= to_next < to_end:
            return name, block[head.end() : closed], to_end + skip
        return name, block[head.end() : closed], to_next if to_next >= 0 else len(block)
    call = whole_call(region)
    return (*call, len(block) if end < 0 else end + len(CALL_END)) if call else None


def _object_end(text: str, start: int) -> int | None:
    """Where the object that opens at `start` closes, braces in strings not counted."""
    depth, quoted, index = 0, False, start
    while index < len(text):
        character = text[index]
        if quoted and character == "\\":
            index += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted and character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return index + 1
        index += 1
    return None


def call_name(raw: str) -> str | None:
    """A name from its JSON spelling, without the quotes; None if it is no JSON string."""
    try:
        name = json.loads(f'"{raw}"')
    except ValueError:
        return None
    return name if isinstance(name, str) and name.strip() else None


def whole_call(block: str) -> tuple[str, str] | None:
    """(name, arguments) of a finished block whose keys come in any order, or None."""
    try:
        call = json.loads(block)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict):
        return None
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
    if not isinstance(name, str) or not name.strip():
        return None
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments)
