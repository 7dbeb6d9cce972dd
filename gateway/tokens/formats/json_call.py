"""Calls as JSON: their heads, their names, and where an object ends."""

from __future__ import annotations

import json
import re


def head_of(*keys: str) -> re.Pattern[str]:
    """A call up to its arguments, if they are an object that comes right after the name."""
    return re.compile(
        r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?'
        r'"name"\s*:\s*"(?P<name>(?:[^"\\]|\\.)+)"\s*,'
        rf'\s*"(?:{"|".join(keys)})"\s*:\s*(?=\{{)',
        re.DOTALL,
    )


HEAD = head_of("arguments", "parameters")

_MARKS = re.compile(r'["\\{}]')
#: A whole string, or as much of one as there is; or a brace outside of them.
_STEPS = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}]', re.DOTALL)


def object_end(text: str, start: int) -> int | None:
    """Where the object that opens at `start` closes, braces in strings not counted."""
    depth = 0
    for step in _STEPS.finditer(text, start):
        if step[0] in ("{", "}"):
            depth += 1 if step[0] == "{" else -1
            if depth == 0:
                return step.end()
    return None


class ObjectScan:
    """Finds the end of a JSON object that arrives in pieces, braces in strings not counted.

    `depth` is how many objects are open before the first piece.
    """

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._quoted = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Where in `text` the object closes, None while it is open."""
        skip = 1 if self._escaped and text else 0
        self._escaped = self._escaped and not text
        for mark in _MARKS.finditer(text):
            at, character = mark.start(), mark[0]
            if at < skip:
                continue
            if character == "\\":
                if self._quoted:
                    skip = at + 2
            elif character == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if character == "{" else -1
                if self._depth == 0:
                    return at + 1
        self._escaped = self._escaped or skip > len(text)
        return None


def spelled_name(raw: str) -> str | None:
    """A name from its JSON spelling, without the quotes; None if it is no JSON string."""
    if raw.isidentifier():
        return raw
    try:
        name = json.loads(f'"{raw}"')
    except ValueError:
        return None
    return name if isinstance(name, str) and name.strip() else None


def plain_name(raw: str) -> str | None:
    """A name as it stands; None if there is nothing of it."""
    return raw.strip() or None


def whole_call(block: str, *, bare: bool = False, key: str = "arguments") -> tuple[str, str] | None:
    """(name, arguments) of a finished object whose keys come in any order, or None.

    A `bare` object, which no tag says to be a call, is one only if it names its arguments, by
    `key` or as parameters.
    """
    try:
        call = json.loads(block)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or (bare and not call.keys() & {key, "parameters"}):
        return None
    name, arguments = call.get("name"), call.get(key, call.get("parameters"))
    if not isinstance(name, str) or not name.strip():
        return None
    if isinstance(arguments, str):
        return name, arguments
    return name, json.dumps({} if arguments is None else arguments, ensure_ascii=False)


def no_call(_: str) -> tuple[str, str] | None:
    """For forms whose calls are always written head first."""
    return None
