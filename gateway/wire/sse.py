"""Server-sent events, as bytes."""

from __future__ import annotations

#: Keeps a silent stream open through proxies; clients skip it.
COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def event(data: bytes, name: str | None = None) -> bytes:
    """One event. `data` is JSON without raw line breaks, which is what every encoder writes."""
    if name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
