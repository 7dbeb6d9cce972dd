"""Headers that say what was served, so that a client can name it later."""

from __future__ import annotations

from gateway.api.opt_out import CAPTURE_HEADER
from gateway.pipeline import Finished, Started


def served_headers(event: Started | Finished) -> dict[str, str]:
    """The turn, its session, and whether they are stored."""
    headers = {
        "x-nextstate-turn-id": str(event.turn_id),
        "x-nextstate-session-id": str(event.session_id),
    }
    if not event.captured:
        headers[CAPTURE_HEADER] = "off"
    return headers
