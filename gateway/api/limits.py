"""How much each key may ask for: token buckets that fill by the minute, in this process alone.

Replicas know nothing of each other's: each allows its share of a limit, as many as the settings
say that there are. A key whose requests are not spread evenly gets less than the whole.

A key's own limits, which its tenant's admins set, hold within those of the settings file and, for
all keys of the tenant together, those that operators gave the tenant.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self
from uuid import UUID

from gateway.config import KeyLimits, LimitSettings
from gateway.errors import TooManyRequests
from gateway.pipeline import Ended, Finished, Listener, Piece, Started
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
    """What one key has left, or all keys of a tenant."""

    def __init__(
        self,
        limits: KeyLimits,
        clock: Clock,
        own: Mapping[str, int] | None = None,
        whose: str = "key",
    ) -> None:
        #: What the key or tenant itself was given; where that changes, the allowance begins anew.
        self.own = own
        self._whose = whose
        #: Of a key, its tenant's.
        self.above: Allowance | None = None
        per_minute, tokens = limits.requests_per_minute, limits.tokens_per_minute
        self.requests = Bucket(per_minute, clock) if per_minute else None
        self.tokens = Bucket(tokens, clock) if tokens else None
        self.places = limits.concurrent_requests
        #: Whether requests or tokens are counted, those of the one above aside.
        self.counts = self.requests is not None or self.tokens is not None
        #: Whether there is anything to `check`.
        self.bounded = self.counts or self.places is not None
        self.running = 0

    @property
    def unused(self) -> bool:
        buckets = [bucket for bucket in (self.requests, self.tokens) if bucket is not None]
        return not self.running and all(bucket.level >= bucket.limit for bucket in buckets)

    def check(self) -> None:
        """Raises TooManyRequests, with the seconds after which it is worth trying again."""
        if self.places is not None and self.running >= self.places:
            raise TooManyRequests(
                f"This {self._whose} may have {self.places} requests at once. "
                "Try again when one has ended.",
                retry_after_s=_PLACE_RETRY_S,
            )
        if not self.counts:
            return
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None and bucket.level < 1:
                wait_s = bucket.until(1)
                raise TooManyRequests(
                    f"This {self._whose} may use {bucket.limit} {name} a minute. "
                    f"Try again in {wait_s:.1f} s.",
                    retry_after_s=wait_s,
                )

    def headers(self) -> dict[str, str]:
        """`x-ratelimit-*`, of the limits that there are: of a key's and its tenant's the nearer."""
        headers = {}
        ranks = [self] if self.above is None else [self, self.above]
        for name, found in (
            ("requests", [one.requests for one in ranks]),
            ("tokens", [one.tokens for one in ranks]),
        ):
            if there := [bucket for bucket in found if bucket is not None]:
                bucket = min(there, key=lambda one: one.level)
                headers[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level)))
                headers[f"x-ratelimit-reset-{name}"] = duration(bucket.until(bucket.limit))
        return headers


class Limiter:
    """The allowances of all keys and tenants, within the settings' `limits`."""

    def __init__(
        self, settings: LimitSettings, clock: Clock = time.monotonic, *, replicas: int = 1
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._clock = clock
        self._allowances: dict[UUID, Allowance] = {}

    def of(self, principal: Principal) -> Allowance:
        own, found = principal.limits, self._allowances.get(principal.key_id)
        if found is None or found.own != own:
            if len(self._allowances) >= _MOST_KEYS:
                self._allowances = {
                    key: one for key, one in self._allowances.items() if not one.unused
                }
            told = self._settings.of(principal.tenant, principal.name)
            limits = told.within(KeyLimits(**own)) if own else told
            found = Allowance(limits.of_each(self._replicas), self._clock, own)
            self._allowances[principal.key_id] = found
        given = principal.tenant_limits
        found.above = self._of_tenant(principal, given) if given else None
        return found

    def _of_tenant(self, principal: Principal, own: Mapping[str, int]) -> Allowance:
        found = self._allowances.get(principal.tenant_id)
        if found is None or found.own != own:
            limits = KeyLimits(**own).of_each(self._replicas)
            found = Allowance(limits, self._clock, own, whose="tenant")
            self._allowances[principal.tenant_id] = found
        return found


class Admission:
    """One request's use of an allowance: `with` it while it runs.

    Raises TooManyRequests on entering.
    """

    def __init__(self, allowance: Allowance) -> None:
        above = allowance.above
        # What the tenant's was as it began is what it ends with.
        self._allowances = (allowance,) if above is None else (allowance, above)
        #: Whether requests or tokens are counted.
        self.counts = allowance.counts or (above is not None and above.counts)

    def __enter__(self) -> Self:
        for allowance in reversed(self._allowances):
            if allowance.bounded:
                allowance.check()
        for allowance in self._allowances:
            if allowance.requests is not None:
                allowance.requests.take(1)
            allowance.running += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for allowance in self._allowances:
            allowance.running -= 1

    def metered(self, listener: Listener | None) -> Meter | None:
        """Tells `listener` and counts tokens as they go by, also of what is aborted.

        None where neither this key's tokens are limited nor its tenant's.
        """
        buckets = [one.tokens for one in self._allowances if one.tokens is not None]
        return Meter(buckets, listener) if buckets else None


class Meter:
    """A listener that takes tokens from buckets before it tells another, if there is one."""

    def __init__(self, buckets: Sequence[Bucket], listener: Listener | None) -> None:
        self._buckets, self._listener = buckets, listener
        self._counted = 0

    async def started(self, event: Started) -> None:
        # Every choice tells of the one prompt.
        self._take(0 if self._counted else event.prompt_tokens)
        if self._listener is not None:
            await self._listener.started(event)

    def sampled(self, piece: Piece) -> bool:
        self._take(len(piece.ids))
        return True if self._listener is None else self._listener.sampled(piece)

    async def ready(self) -> None:
        if self._listener is not None:
            await self._listener.ready()

    async def ended(self, event: Ended) -> None:
        if self._listener is not None:
            await self._listener.ended(event)

    async def serving(self, turn: Awaitable[Finished]) -> Finished:
        """The turn that it listens to, counted to its end."""
        finished = await turn
        self.finished(finished)
        return finished

    def finished(self, event: Finished) -> None:
        """Take what an engine without ids has told of at the end only."""
        usage = event.usage
        self._take(max(0, usage.prompt_tokens + usage.completion_tokens - self._counted))

    def _take(self, count: int) -> None:
        if count:
            for bucket in self._buckets:
                bucket.take(count)
            self._counted += count


def duration(seconds: float) -> str:
    """As the OpenAI API writes it: `20ms`, `1.5s`, `2m3s`."""
    if seconds < 1:
        return f"{round(seconds * 1e3)}ms"
    minutes, rest = divmod(seconds, _MINUTE_S)
    return f"{int(minutes)}m{int(rest)}s" if minutes else f"{rest:.3g}s"
