"""How much each key may ask for: token buckets that fill by the minute, in this process alone.

Several gateway replicas each allow the whole of a limit.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Self
from uuid import UUID

from gateway.config import KeyLimits, LimitSettings
from gateway.errors import TooManyRequests
from gateway.pipeline import Event, Finished, Piece, Started
from gateway.records import Principal

Clock = Callable[[], float]

_MINUTE_S = 60.0
#: A place is free as soon as one of the key's own requests ends.
_PLACE_RETRY_S = 1.0
#: Keys whose state is kept; beyond it those that are as good as new are forgotten.
_MOST_KEYS = 10_000


class Bucket:
    """Holds a minute's worth, and fills steadily. What is spent later may overdraw it."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._clock = clock
        self._level = float(limit)
        self._at = clock()

    @property
    def level(self) -> float:
        now = self._clock()
        self._level = min(self.limit, self._level + (now - self._at) * self.limit / _MINUTE_S)
        self._at = now
        return self._level

    def take(self, count: int) -> None:
        self._level = self.level - count

    def until(self, level: float) -> float:
        """Seconds until it holds so much."""
        return max(0.0, (level - self.level) * _MINUTE_S / self.limit)


class Allowance:
    """What one key has left."""

    def __init__(self, limits: KeyLimits, clock: Clock) -> None:
        per_minute, tokens = limits.requests_per_minute, limits.tokens_per_minute
        self.requests = Bucket(per_minute, clock) if per_minute else None
        self.tokens = Bucket(tokens, clock) if tokens else None
        self.places = limits.concurrent_requests
        self.running = 0

    @property
    def unused(self) -> bool:
        buckets = [bucket for bucket in (self.requests, self.tokens) if bucket is not None]
        return not self.running and all(bucket.level >= bucket.limit for bucket in buckets)

    def check(self) -> None:
        """Raises TooManyRequests, with the seconds after which it is worth trying again."""
        if self.places is not None and self.running >= self.places:
            raise TooManyRequests(
                f"This key may have {self.places} requests at once. Try again when one has ended.",
                retry_after_s=_PLACE_RETRY_S,
            )
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None and bucket.level < 1:
                wait_s = bucket.until(1)
                raise TooManyRequests(
                    f"This key may use {bucket.limit} {name} a minute. "
                    f"Try again in {wait_s:.1f} s.",
                    retry_after_s=wait_s,
                )

    def headers(self) -> dict[str, str]:
        """`x-ratelimit-*`, of the limits that there are."""
        headers = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level)))
                headers[f"x-ratelimit-reset-{name}"] = duration(bucket.until(bucket.limit))
        return headers


class Limiter:
    """The allowances of all keys, by the settings' `limits`."""

    def __init__(self, settings: LimitSettings, clock: Clock = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._allowances: dict[UUID, Allowance] = {}

    def of(self, principal: Principal) -> Allowance:
        found = self._allowances.get(principal.key_id)
        if found is None:
            if len(self._allowances) >= _MOST_KEYS:
                self._allowances = {
                    key: one for key, one in self._allowances.items() if not one.unused
                }
            limits = self._settings.of(principal.tenant, principal.name)
            found = self._allowances[principal.key_id] = Allowance(limits, self._clock)
        return found


class Admission:
    """One request's use of an allowance: `with` it while it runs.

    Raises TooManyRequests on entering.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance

    def __enter__(self) -> Self:
        self._allowance.check()
        if self._allowance.requests is not None:
            self._allowance.requests.take(1)
        self._allowance.running += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._allowance.running -= 1

    def metered(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """The events as they are; tokens are counted as they go by, also of what is aborted."""
        bucket = self._allowance.tokens
        return events if bucket is None else _counted(events, bucket)


async def _counted(
    events: AsyncGenerator[Event, None], bucket: Bucket
) -> AsyncGenerator[Event, None]:
    counted = 0
    async for event in events:
        count = _tokens(event, counted)
        bucket.take(count)
        counted += count
        yield event


def _tokens(event: Event, counted: int) -> int:
    if isinstance(event, Started):
        return event.prompt_tokens
    if isinstance(event, Piece):
        return len(event.ids)
    if isinstance(event, Finished):
        # An engine without ids tells at the end.
        usage = event.usage
        return max(0, usage.prompt_tokens + usage.completion_tokens - counted)
    return 0


def duration(seconds: float) -> str:
    """As the OpenAI API writes it: `20ms`, `1.5s`, `2m3s`."""
    if seconds < 1:
        return f"{round(seconds * 1e3)}ms"
    minutes, rest = divmod(seconds, _MINUTE_S)
    return f"{int(minutes)}m{int(rest)}s" if minutes else f"{rest:.3g}s"
