"""What an endpoint has cost today, and whether it may cost more."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_DAY_S = 86_400


@dataclass(slots=True)
class Budget:
    """Limits of one worker for a day (UTC); None is no limit.

    Prices are in USD for a million tokens. Calls in flight when a limit is reached still end, so
    that it may be exceeded by theirs.
    """

    tokens_per_day: int | None = None
    usd_per_day: float | None = None
    prompt_usd: float = 0.0
    completion_usd: float = 0.0
    clock: Callable[[], float] = time.time
    tokens: int = field(default=0, init=False)
    usd: float = field(default=0.0, init=False)
    _day: int = field(default=-1, init=False)

    def spend(self, prompt_tokens: int, completion_tokens: int) -> None:
        self._turn_page()
        self.tokens += prompt_tokens + completion_tokens
        self.usd += (
            prompt_tokens * self.prompt_usd + completion_tokens * self.completion_usd
        ) / 1e6

    @property
    def spent(self) -> bool:
        """Whether a limit is reached."""
        self._turn_page()
        return (self.tokens_per_day is not None and self.tokens >= self.tokens_per_day) or (
            self.usd_per_day is not None and self.usd >= self.usd_per_day
        )

    def report(self) -> dict[str, float]:
        self._turn_page()
        return {"tokens_today": self.tokens, "usd_today": round(self.usd, 4)}

    def _turn_page(self) -> None:
        today = int(self.clock() // _DAY_S)
        if today != self._day:
            self._day, self.tokens, self.usd = today, 0, 0.0
