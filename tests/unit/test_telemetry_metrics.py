"""What a gateway counts, event by event."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gateway.records import Timings, TurnKind, Usage
from gateway.telemetry.metrics import ServingMetrics
from tests.factories import session, turn

REGISTERED = "nextstate_gateway_"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_answers_are_told_apart_by_status(registry: CollectorRegistry) -> None:
    metrics = ServingMetrics(registry)
    for status, seconds in ((200, 0.2), (200, 3.0), (499, 0.01)):
        metrics.answered("openai_chat", "generate", status, seconds)
    metrics.broken("openai_chat")
    kind = {"dialect": "openai_chat", "operation": "generate"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"{REGISTERED}{name}", labels)

    assert value("requests_total", **kind, status="200") == 2
    assert value("requests_total", **kind, status="499") == 1
    assert value("request_seconds_sum", **kind) == pytest.approx(3.21)
    # Buckets hold what took at most so long.
    buckets = [value("request_seconds_bucket", **kind, le=le) for le in ("0.05", "0.25", "5.0")]
    assert buckets == [1, 2, 3]
    assert value("streams_broken_total", dialect="openai_chat") == 1


def test_a_turn_is_counted_as_served_and_as_stored(registry: CollectorRegistry) -> None:
    metrics = ServingMetrics(registry)
    one = session()
    usage = Usage(prompt_tokens=100, completion_tokens=7, cached_tokens=60)
    timings = Timings(first_token_ms=20.0, total_ms=50.0)
    good = turn(one, usage=usage, timings=timings)
    bad = turn(
        one,
        kind=TurnKind.SIDE,
        usage=usage,
        trainable=False,
        untrainable_reason="grammar",
        stream_mismatch=True,
    )
    for each in (good, good, bad):
        metrics.served(each)
        metrics.stored(each)
    metrics.served(good)
    metrics.uncaptured()
    metrics.lost()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"{REGISTERED}{name}", labels)

    assert value("turns_total", kind="main", trainable="yes") == 2
    assert value("turns_total", kind="side", trainable="no") == 1
    assert value("turns_untrainable_total", reason="grammar") == 1
    assert value("stream_mismatches_total") == 1
    assert value("tokens_total", kind="prompt") == 400
    assert value("tokens_total", kind="cached") == 240
    assert value("tokens_total", kind="completion") == 28
    # What came whole has no first token to wait for.
    assert value("first_token_seconds_count", dialect="openai_chat") == 3
    assert value("first_token_seconds_sum", dialect="openai_chat") == pytest.approx(0.06)
    assert (value("turns_uncaptured_total"), value("records_lost_total")) == (1, 1)


def test_reasons_in_an_engines_own_words_do_not_grow_without_end(
    registry: CollectorRegistry,
) -> None:
    metrics = ServingMetrics(registry)
    one = session()
    for number in range(100):
        metrics.stored(turn(one, trainable=False, untrainable_reason=f"reason {number}"))
    name = f"{REGISTERED}turns_untrainable_total"
    found = {
        sample.labels["reason"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == name
    }
    assert len(found) == 65
    assert found["other"] == 36
    assert sum(found.values()) == 100
