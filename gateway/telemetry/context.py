"""What each line that is logged while a request is served says of that request."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import Any

_REQUEST: ContextVar[dict[str, object] | None] = ContextVar("nextstate_request", default=None)


class _Held(AbstractContextManager[None]):
    """What `request_context` gives; as a generator it would cost three times as much."""

    def __init__(self, values: dict[str, object]) -> None:
        self._values = values

    def __enter__(self) -> None:
        self._token: Token[dict[str, object] | None] = _REQUEST.set(self._values)

    def __exit__(self, *_: object) -> None:
        _REQUEST.reset(self._token)


def request_context(**values: object) -> AbstractContextManager[None]:
    """Lines that are logged inside, also by tasks begun there, carry `values`."""
    return _Held(values)


def own_context() -> AbstractContextManager[None]:
    """Lines that are logged inside carry what those outside do, and what is bound inside alone."""
    return _Held(dict(_REQUEST.get() or {}))


def bind(**values: object) -> None:
    """Add to what the lines of this request carry; nothing outside of one."""
    held = _REQUEST.get()
    if held is not None:
        held.update(values)


def merge_request(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """The processor: an event's own values win."""
    held = _REQUEST.get()
    return event if held is None else {**held, **event}
