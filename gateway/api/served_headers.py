"""Headers that say what was served, so that a client can name it later."""

from __future__ import annotations

from gateway.api.opt_out import CAPTURE_HEADER
from gateway.pipeline import Finished, Started

_NOT_CAPTURED = (CAPTURE_HEADER.encode(), b"off")


def served_headers(event: Started | Finished) -> list[tuple[bytes, bytes]]:
    """The turn, its session, and whether they are stored."""
    headers = [
        (b"x-nextstate-turn-id", str(event.turn_id).encode()),
        (b"x-nextstate-session-id", str(event.session_id).encode()),
    ]
    if not event.captured:
        headers.append(_NOT_CAPTURED)
    return headers
