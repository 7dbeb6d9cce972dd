"""Figures of a judge as Prometheus reads them, and what a judgement cost."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.errors import ConfigError
from gateway.records import Judgement
from gateway.telemetry.scrape import served
from judge.health import Health
from judge.metrics import JudgeMetrics
from judge.usage import Price, usage_of

VOTES = (
    {"kind": "grade", "score": 1, "prompt_tokens": 100, "completion_tokens": 10, "ms": 50.0},
    {"kind": "grade", "score": None, "prompt_tokens": 100, "completion_tokens": 30, "ms": 80.0},
    {"kind": "grade", "score": None, "error": "no"},
    {"kind": "hint", "improves": False, "prompt_tokens": 90, "completion_tokens": 5, "ms": 40.0},
)
ASKED = Judgement(judge="llm:m", score=1.0, votes=VOTES)


def test_a_judgement_costs_what_its_answers_did() -> None:
    price = Price(prompt_usd=2.0, completion_usd=10.0)
    assert usage_of(ASKED, price) == {
        "calls": 4, "prompt_tokens": 290, "completion_tokens": 45,
        # 290 at 2 and 45 at 10 USD a million; two questions, one after the other.
        "usd": 0.00103, "ms": 120.0,
    }  # fmt: skip
    assert usage_of(Judgement(judge="rules", score=1.0)) == {}
    taught = Judgement(judge="rules", score=-1.0, usage={"teacher_error": "gone"})
    assert usage_of(taught) == {"teacher_error": "gone"}


def test_every_event_is_counted_in_the_registry_that_was_given() -> None:
    registry = CollectorRegistry()
    detail = {"health": {"disagreement": 0.25, "feedback_kappa": None}, "alarms": ["ms_p95"],
              "claimed": 7, "in_hand": 2}  # fmt: skip
    health = Health(recorder=JudgeMetrics(registry, lambda: detail))
    usage = usage_of(ASKED, Price(prompt_usd=2.0, completion_usd=10.0))
    health.judged(Judgement(judge="llm:m", score=1.0, votes=VOTES, usage=usage), 0.2)
    health.judged(Judgement(judge="rules", score=None, rule="truncated"), 0.001)
    health.checked(1.0, 0.5)
    health.checked(1.0, -1.0)
    health.taught(done=True)
    health.taught(done=False)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"nextstate_judge_{name}", labels)

    assert value("judgements_total", judge="llm:m", rule="", score="1") == 1
    assert value("judgements_total", judge="rules", rule="truncated", score="none") == 1
    outcomes = ("parsed", "unparsed", "error")
    assert [value("votes_total", kind="grade", outcome=one) for one in outcomes] == [1, 1, 1]
    assert value("votes_total", kind="hint", outcome="parsed") == 1
    assert value("tokens_total", kind="prompt") == 290
    assert value("usd_total") == pytest.approx(0.00103)
    assert value("seconds_count") == 2
    assert (value("feedback_compared_total", agrees="yes"),
            value("feedback_compared_total", agrees="no")) == (1, 1)  # fmt: skip
    assert value("teachings_total", outcome="failed") == 1
    assert value("window", figure="disagreement") == 0.25
    assert value("window", figure="feedback_kappa") is None
    assert value("alarm", figure="ms_p95") == 1
    assert (value("jobs", state="claimed"), value("jobs", state="in_hand")) == (7, 2)
    # Another registry knows nothing of it.
    other = CollectorRegistry()
    JudgeMetrics(other)
    assert b"llm:m" not in generate_latest(other)


def test_a_port_serves_them_until_it_is_closed() -> None:
    registry = CollectorRegistry()
    JudgeMetrics(registry).taught(done=True)
    with served(registry, "127.0.0.1", 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
            assert b'nextstate_judge_teachings_total{outcome="stored"} 1.0' in reply.read()
        with pytest.raises(ConfigError, match="metrics_port"), served(registry, "127.0.0.1", port):
            pass
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
