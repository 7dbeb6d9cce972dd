"""What each line that is logged while a request is served says of that request."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token

_REQUEST: ContextVar[dict[str, object] | None] = ContextVar("nextstate_request", default=None)

#: What the lines of this request carry; None outside of one.
carried: Callable[[], dict[str, object] | None] = _REQUEST.get


class request_context:  # noqa: N801 - it reads as what it does, and a generator costs every request
    """Lines that are logged inside, also by tasks begun there, carry `values`."""

    def __init__(self, **values: object) -> None:
        self._values = values

    def __enter__(self) -> None:
        self._token: Token[dict[str, object] | None] = _REQUEST.set(self._values)

    def __exit__(self, *_: object) -> None:
        _REQUEST.reset(self._token)


def own_context() -> request_context:
    """Lines that are logged inside carry what those outside do, and what is bound inside alone."""
    return request_context(**(carried() or {}))


def bind(**values: object) -> None:
    """Add to what the lines of this request carry; nothing outside of one."""
    held = _REQUEST.get()
    if held is not None:
        held.update(values)
