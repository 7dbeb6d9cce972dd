"""How much each key may ask for."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from gateway.api.limits import Admission, Allowance, Bucket, Limiter, duration
from gateway.config import KeyLimits, LimitSettings
from gateway.errors import TooManyRequests
from gateway.pipeline import Ended, Finished, Piece, Started
from gateway.records import FinishReason, Principal, Reply, Role, Usage


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


class Heard:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    async def started(self, event: Started) -> None:
        self.kinds.append("started")

    def sampled(self, piece: Piece) -> bool:
        self.kinds.append("sampled")
        return True

    async def ready(self) -> None:
        self.kinds.append("ready")

    async def ended(self, event: Ended) -> None:
        self.kinds.append("ended")


def test_without_a_limit_nothing_counts() -> None:
    with Admission(Allowance(KeyLimits(requests_per_minute=5), Clock())) as admission:
        assert admission.metered(Heard()) is None


async def test_what_is_told_at_the_end_alone_is_counted_then() -> None:
    allowance = Allowance(KeyLimits(tokens_per_minute=100), Clock())
    with Admission(allowance) as admission:
        meter = admission.metered(None)
        assert meter is not None
        await meter.started(
            Started(turn_id=UUID(int=1), session_id=UUID(int=2), created_at=0.0, prompt_tokens=0)
        )
        usage = Usage(prompt_tokens=30, completion_tokens=12)
        choice = Ended(
            choice=0,
            turn_id=UUID(int=1),
            reply=Reply(),
            finish_reason=FinishReason.STOP,
            stopped_by=None,
            usage=usage,
            version=None,
            sampled_ids=(),
            logprobs=(),
        )
        meter.finished(
            Finished(turn_id=UUID(int=1), session_id=UUID(int=2), created_at=0.0, choices=(choice,))
        )
    assert allowance.tokens is not None
    assert allowance.tokens.level == 58


async def test_tokens_are_counted_as_they_go_by() -> None:
    clock = Clock()
    allowance = Allowance(KeyLimits(tokens_per_minute=10), clock)

    heard = Heard()
    with Admission(allowance) as admission:
        meter = admission.metered(heard)
        assert meter is not None
        opening = Started(
            turn_id=UUID(int=1), session_id=UUID(int=2), created_at=0.0, prompt_tokens=7
        )
        # Two choices have one prompt.
        await meter.started(opening)
        await meter.started(opening)
        assert meter.sampled(Piece(deltas=(), ids=(1, 2, 3, 4), logprobs=(0.0,) * 4))
    assert heard.kinds == ["started", "started", "sampled"]
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


def test_replicas_share_a_limit() -> None:
    """Of 10 a minute and 2 at once, three processes allow 3 and 1 each."""
    own = KeyLimits(requests_per_minute=10, concurrent_requests=2)
    limiter = Limiter(LimitSettings(keys={"agent": own}), Clock(), replicas=3)
    allowance = limiter.of(principal("agent"))
    assert allowance.headers()["x-ratelimit-limit-requests"] == "3"
    assert "x-ratelimit-limit-tokens" not in allowance.headers()
    with Admission(allowance), pytest.raises(TooManyRequests):
        allowance.check()


def test_a_keys_own_limits_lift_none_of_the_settings() -> None:
    settings = LimitSettings(requests_per_minute=5, tokens_per_minute=100)
    limiter = Limiter(settings, Clock())
    own = {"requests_per_minute": 9, "tokens_per_minute": 40, "concurrent_requests": 2}
    headers = limiter.of(replace(principal("agent"), limits=own)).headers()
    limits = (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-limit-tokens"])
    assert limits == ("5", "40")
    assert limiter.of(replace(principal("agent"), limits=own)).places == 2
    assert limiter.of(replace(principal("agent"), limits={})).places is None


def test_all_keys_of_a_tenant_share_what_operators_gave_it() -> None:
    clock = Clock()
    limiter = Limiter(LimitSettings(), clock)
    given = {"requests_per_minute": 3, "tokens_per_minute": 100, "concurrent_requests": 2}
    one = replace(principal("one", 1), tenant_limits=given, limits={"requests_per_minute": 2})
    two = replace(principal("two", 2), tenant_limits=given)
    with Admission(limiter.of(one)), Admission(limiter.of(two)):
        # Two at once, whichever keys they are of.
        with pytest.raises(TooManyRequests, match="This tenant may have 2 requests at once"):
            Admission(limiter.of(two)).__enter__()
        # The nearer of both limits is shown: two a minute of the key's own, one of them left.
        assert limiter.of(one).headers()["x-ratelimit-limit-requests"] == "2"
        assert limiter.of(two).headers()["x-ratelimit-limit-requests"] == "3"
        assert limiter.of(two).headers()["x-ratelimit-remaining-requests"] == "1"
    with Admission(limiter.of(two)) as admission:
        meter = admission.metered(None)
    assert meter is not None
    with pytest.raises(TooManyRequests, match="This tenant may use 3 requests a minute"):
        Admission(limiter.of(one)).__enter__()
    clock.now += 60
    usage = Usage(prompt_tokens=90, completion_tokens=30, cached_tokens=0)
    meter._take(usage.prompt_tokens + usage.completion_tokens)
    with pytest.raises(TooManyRequests, match="This tenant may use 100 tokens a minute"):
        Admission(limiter.of(one)).__enter__()
    # Another tenant's are its own, and limits that are taken away bind nobody.
    other = replace(principal("three", 3), tenant_id=UUID(int=10), tenant_limits=given)
    for who in (other, replace(one, tenant_limits=None)):
        with Admission(limiter.of(who)):
            pass
