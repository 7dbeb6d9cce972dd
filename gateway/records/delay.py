"""How long a user took to answer, in few words."""

from __future__ import annotations

#: A user who answers a day later is not to vanish unseen among what is dropped as stale.
_DELAYS = {"minute": 60.0, "hour": 3600.0, "day": 86_400.0}


def delay(seconds: float) -> str:
    """`stale_within_minute`, `_hour` or `_day`, or `stale_after_day`: what was dropped as stale.

    `seconds` passed from the reply to its next state.
    """
    for name, most in _DELAYS.items():
        if seconds <= most:
            return f"stale_within_{name}"
    return "stale_after_day"
