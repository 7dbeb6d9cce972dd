"""How much each key may ask for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from uuid import UUID

import pytest

from gateway.api.limits import Admission, Allowance, Bucket, Limiter, duration
from gateway.config import KeyLimits, LimitSettings
from gateway.errors import TooManyRequests
from gateway.pipeline import Event, Piece, Started
from gateway.records import Principal, Role


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def principal(name: str, number: int = 1, tenant: str = "acme") -> Principal:
    return Principal(
        key_id=UUID(int=number),
        tenant_id=UUID(int=9),
        tenant=tenant,
        name=name,
        role=Role.AGENT,
        lineage_id=UUID(int=8),
    )


def test_a_bucket_fills_steadily_and_no_further() -> None:
    clock = Clock()
    bucket = Bucket(120, clock)
    bucket.take(120)
    assert (bucket.level, bucket.until(1), bucket.until(120)) == (0, 0.5, 60)
    clock.now += 10
    assert bucket.level == 20
    clock.now += 1000
    assert bucket.level == 120


def test_an_overdrawn_bucket_waits_longer() -> None:
    clock = Clock()
    bucket = Bucket(60, clock)
    bucket.take(100)
    assert bucket.until(1) == 41


def test_requests_a_minute() -> None:
    clock = Clock()
    allowance = Allowance(KeyLimits(requests_per_minute=2), clock)
    for _ in range(2):
        with Admission(allowance):
            pass
    assert allowance.headers() == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    with pytest.raises(TooManyRequests) as caught:
        Admission(allowance).__enter__()
    assert caught.value.retry_after_s == 30
    assert allowance.running == 0
    clock.now += 30
    with Admission(allowance):
        assert allowance.running == 1


def test_requests_at_once() -> None:
    allowance = Allowance(KeyLimits(concurrent_requests=1), Clock())
    with Admission(allowance), pytest.raises(TooManyRequests, match="1 requests at once"):
        Admission(allowance).__enter__()
    with Admission(allowance):
        assert allowance.running == 1
    assert allowance.headers() == {}


async def test_tokens_are_counted_as_they_go_by() -> None:
    clock = Clock()
    allowance = Allowance(KeyLimits(tokens_per_minute=10), clock)

    async def events() -> AsyncGenerator[Event, None]:
        yield Started(turn_id=UUID(int=1), session_id=UUID(int=2), created_at=0.0, prompt_tokens=7)
        yield Piece(deltas=(), ids=(1, 2, 3, 4), logprobs=(0.0,) * 4)

    with Admission(allowance) as admission:
        assert len([event async for event in admission.metered(events())]) == 2
    assert allowance.tokens is not None
    assert allowance.tokens.level == -1
    with pytest.raises(TooManyRequests, match="10 tokens a minute") as caught:
        Admission(allowance).__enter__()
    assert caught.value.retry_after_s == 12


def test_a_key_has_its_own_limits_and_its_own_state() -> None:
    settings = LimitSettings(
        requests_per_minute=5,
        keys={
            "crawler": KeyLimits(requests_per_minute=1),
            "acme/boss": KeyLimits(),
        },
    )
    limiter = Limiter(settings, Clock())
    usual, crawler = limiter.of(principal("agent", 1)), limiter.of(principal("crawler", 2))
    assert usual.requests is not None
    assert crawler.requests is not None
    assert (usual.requests.limit, crawler.requests.limit) == (5, 1)
    assert limiter.of(principal("boss", 3)).requests is None
    other = limiter.of(principal("boss", 4, tenant="others"))
    assert other.requests is not None
    assert limiter.of(principal("agent", 1)) is usual


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0ms"), (0.02, "20ms"), (1.5, "1.5s"), (59, "59s"), (60, "1m0s"), (123.9, "2m3s")],
)
def test_durations(seconds: float, written: str) -> None:
    assert duration(seconds) == written
