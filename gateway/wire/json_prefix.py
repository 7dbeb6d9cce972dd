"""A JSON object that is still being written, kept valid whatever comes.

Models write arguments token by token, and not always as JSON. Clients put the pieces together and
decode them, some of them at every piece; what they cannot decode ends their run.
"""

from __future__ import annotations

import re

import msgspec

_SPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_WHOLE_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null", re.ASCII)


class JsonPrefix:
    """Feed it text; what it gives back is always the start of a JSON object.

    `finish` gives what completes the object. Where the text was none, that adds a member named
    `unparsed` with all of the text as it was written.
    """

    def __init__(self, unparsed: str) -> None:
        self._unparsed = unparsed
        self._written: list[str] = []
        self._pending = ""
        self._broken = False
        self._ended = False
        self._stack: list[str] = []
        #: start, key (or first_key), colon, value (or first_value), string, key_string, after
        self._state = "start"

    def feed(self, text: str) -> str:
        """As much of the text as can be shown: half escapes and scalars wait for their end."""
        self._written.append(text)
        if self._broken:
            return ""
        buffer, position = self._pending + text, 0
        if self._state == "start":
            buffer = buffer.lstrip(_SPACE)
        while position < len(buffer) and not self._ended:
            step = self._step(buffer, position)
            if step <= 0:
                self._broken = step < 0
                break
            position += step
        self._pending = buffer[position:]
        if self._ended and self._pending[1:].strip(_SPACE):
            self._broken = True
        return buffer[:position]

    def finish(self) -> str:
        """What is missing: nothing for no text at all."""
        whole = "".join(self._written)
        if self._state == "start" and not whole.strip():
            return ""
        if self._ended and not self._broken:
            return "}"
        if self._state == "start":
            return msgspec.json.encode({self._unparsed: whole}).decode()
        closed = self._closed_to_outermost()
        comma = "," if self._state == "after" else ""
        return f"{closed}{comma}{self._member(whole)}" + "}"

    def _step(self, buffer: str, at: int) -> int:
        """How many characters are well-formed from here; 0 to wait for more, -1 for never."""
        character = buffer[at]
        if self._state in ("string", "key_string"):
            return self._in_string(buffer, at)
        if character in _SPACE:
            return 1
        if self._state in ("value", "first_value"):
            return self._value(buffer, at)
        if character == '"' and self._state in ("key", "first_key"):
            return self._to("key_string")
        if character == ":" and self._state == "colon":
            return self._to("value")
        if character == "," and self._state == "after":
            return self._to("key" if self._stack[-1] == "{" else "value")
        if character == "}" and self._stack[-1:] == ["{"] and self._state in ("first_key", "after"):
            return self._close()
        if character == "]" and self._stack[-1:] == ["["] and self._state == "after":
            return self._close()
        if character == "{" and self._state == "start":
            return self._open("{")
        return -1

    def _value(self, buffer: str, at: int) -> int:
        character = buffer[at]
        if character == '"':
            return self._to("string")
        if character in "{[":
            return self._open(character)
        if character == "]" and self._state == "first_value":
            return self._close()
        scalar = _SCALAR.match(buffer, at)
        if scalar is None:
            return -1
        if scalar.end() == len(buffer):
            return 0
        if not _WHOLE_SCALAR.fullmatch(scalar[0]):
            return -1
        self._state = "after"
        return len(scalar[0])

    def _in_string(self, buffer: str, at: int) -> int:
        if buffer[at] == '"':
            return self._to("colon" if self._state == "key_string" else "after")
        found = _PLAIN.match(buffer, at) or _ESCAPE.match(buffer, at)
        if found is not None:
            return len(found[0])
        return 0 if _HALF_ESCAPE.match(buffer, at) else -1

    def _to(self, state: str) -> int:
        self._state = state
        return 1

    def _open(self, bracket: str) -> int:
        self._stack.append(bracket)
        return self._to("first_key" if bracket == "{" else "first_value")

    def _close(self) -> int:
        """The last brace waits for the end: something may still follow that must not."""
        if len(self._stack) == 1:
            self._ended = True
            return 0
        self._stack.pop()
        return self._to("after")

    def _closed_to_outermost(self) -> str:
        """What closes all that is open but the object itself."""
        text = ""
        if self._state in ("string", "key_string"):
            text += '"'
            self._state = "colon" if self._state == "key_string" else "after"
        if self._state == "colon":
            text += ":null"
            self._state = "after"
        if self._state == "value":
            text += "null"
            self._state = "after"
        if self._state == "key" and len(self._stack) > 1:
            text += '"":null'
        while len(self._stack) > 1:
            text += "}" if self._stack.pop() == "{" else "]"
            self._state = "after"
        return text

    def _member(self, whole: str) -> str:
        name, value = (msgspec.json.encode(each).decode() for each in (self._unparsed, whole))
        return f"{name}:{value}"
