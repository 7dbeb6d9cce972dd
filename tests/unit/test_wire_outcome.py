"""Whether official clients, which wait for 60 s at most, are told to come back."""

from __future__ import annotations

import pytest

from gateway.errors import (
    Conflict,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    NextstateError,
    TooManyRequests,
)
from gateway.wire.outcome import outcome_of


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (TooManyRequests("Slowly.", retry_after_s=0.2), {"retry-after": "1"}),
        (TooManyRequests("Slowly.", retry_after_s=60), {"retry-after": "60"}),
        (
            TooManyRequests("Slowly.", retry_after_s=60.5),
            {"retry-after": "61", "x-should-retry": "false"},
        ),
        # They send again what gets a 409, too.
        (Conflict("Taken."), {"x-should-retry": "false"}),
        (EngineRejected("No.", engine="e"), {"x-should-retry": "false"}),
        (EngineOverloaded("Full.", engine="e"), {"retry-after": "1"}),
        (EngineTimeout("Late.", engine="e"), {}),
    ],
)
def test_when_to_come_back(error: NextstateError, headers: dict[str, str]) -> None:
    assert dict(outcome_of(error).headers) == headers
