"""The incremental form of `ParameterCalls.take`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gateway.tokens.formats.base import Schemas
from gateway.tokens.formats.opened import OpenedReader
from gateway.tokens.formats.typed_values import as_json
from gateway.tokens.stops import held_back

if TYPE_CHECKING:
    from gateway.tokens.formats.parameters import ParameterCalls


class ParameterReader(OpenedReader):
    """Reads one reply as it comes; text arguments grow, others are shown once they are whole."""

    def __init__(self, form: ParameterCalls, mint: Callable[[], str], schemas: Schemas) -> None:
        super().__init__(form.open, mint, form.dropped)
        self._form = form
        self._schemas = schemas
        self._schema: Mapping[str, Any] = {}
        self._separator = ""
        self._key = ""
        self._searched = 0
        self._begun = False

    def _in_head(self, final: bool) -> bool:
        form = self._form
        if head := form.head.match(self._buffer):
            self._open(head["name"])
            self._arguments("{")
            self._schema = self._schemas.get(head["name"], {})
            self._buffer = self._buffer[head.end() :]
            self._separator = ""
            self._state = self._in_arguments
            return True
        region, closed, rest = self._buffer.partition(form.close)
        if not closed and not final:
            return False
        self._show(self._before + region + closed)
        self._buffer = rest
        self._state = self._in_text
        return bool(rest)

    def _in_arguments(self, final: bool) -> bool:
        form = self._form
        key = form.key.search(self._buffer)
        end = self._buffer.find(form.close)
        if end >= 0 and (key is None or end < key.start()):
            self._arguments("}")
            self._buffer = self._buffer[end + len(form.close) :]
            self._after_call = True
            self._state = self._in_text
            return True
        if key is None:
            self._buffer = "" if final else self._buffer
            return False
        name = json.dumps(key["key"], ensure_ascii=False)
        self._key = f"{self._separator}{name}: "
        self._buffer = self._buffer[key.end() :]
        self._searched, self._begun = 0, False
        self._state = self._in_string if form.is_text(self._schema, key) else self._in_value
        return True

    def _in_value(self, final: bool) -> bool:
        mark = self._form.value_end
        closed = self._buffer.find(mark, max(0, self._searched - len(mark)))
        if closed < 0:
            self._searched = len(self._buffer)
            self._buffer = "" if final else self._buffer
            return False
        value = self._buffer[:closed]
        if self._form.trim:
            value = value.removeprefix("\n").removesuffix("\n")
        self._arguments(self._key + as_json(value))
        self._next(closed + len(mark))
        return True

    def _in_string(self, final: bool) -> bool:
        mark, trim = self._form.value_end, self._form.trim
        if not self._begun:
            if not self._buffer and not final:
                return False
            self._buffer = self._buffer.removeprefix("\n") if trim else self._buffer
            self._arguments(self._key + '"')
            self._begun = True
        closed = self._buffer.find(mark)
        if closed >= 0:
            value = self._buffer[:closed]
            self._arguments(_escaped(value.removesuffix("\n") if trim else value) + '"')
            self._next(closed + len(mark))
            return True
        ready = self._buffer
        if not final:
            ready = ready[: len(ready) - held_back(ready, "\n" + mark if trim else mark, mark)]
        self._arguments(_escaped(ready))
        self._buffer = self._buffer[len(ready) :]
        return False

    def _next(self, end: int) -> None:
        self._buffer = self._buffer[end:]
        self._separator = ", "
        self._state = self._in_arguments


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
