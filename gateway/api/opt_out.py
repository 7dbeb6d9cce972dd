"""A request that is not to be kept: its client says so in a header."""

from __future__ import annotations

from collections.abc import Mapping

#: The same header tells clients, with `off`, that a reply was not captured.
CAPTURE_HEADER = "x-nextstate-capture"
_ON = frozenset({"on", "true", "yes", "1"})


def opted_out(headers: Mapping[str, str]) -> bool:
    """Whether nothing of a request may be kept: whatever is not plainly a yes is a no."""
    given = headers.get(CAPTURE_HEADER)
    return given is not None and given.strip().lower() not in _ON
