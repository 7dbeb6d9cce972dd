"""What `nextstate status` says is amiss, and what it shows."""

from __future__ import annotations

import io
import time
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from gateway.config import FreshnessSettings
from gateway.local.config import LocalSettings
from gateway.local.screen import screen
from gateway.local.summary import notes

SETTINGS = LocalSettings(freshness=FreshnessSettings(batch=16))


def found(**changes: Any) -> dict[str, Any]:
    """A stack that goes well, but for `changes` of its funnel, lineage or parts."""
    funnel = {
        "turns": 9, "main": 8, "side": 1, "unknown": 0, "trainable": 8, "with_next_state": 7,
        "judging": 0, "scored": 6, "trained": 4, "samples": {"ready": 20, "leased": 0},
        "unscored": {}, "untrainable": {}, "dropped": {},
    }  # fmt: skip
    lineage = {
        "name": "default", "base_model": "tiny", "live_version": 3, "steps": 3, "ready": 20,
        "leased": 0, "trains": True, "last_step_at": time.time(), "id": UUID(int=1),
    }  # fmt: skip
    workers = [
        {
            "kind": kind, "host": "here", "pid": 7, "revision": "0003", "detail": {},
            "started_at": time.time() - 300, "heartbeat_at": time.time(),
        }
        for kind in ("gateway", "judge", "trainer")
    ]  # fmt: skip
    whole = {
        "version": "9.9", "stack": None, "url": "http://g", "schema": "0003", "paused": [],
        "gateway": {"status": "ready", "engines": [], "spooling": False, "model": "tiny"},
        "funnel": funnel,
        "store": {
            "lineages": [lineage], "jobs": {"queued": 2, "leased": 1}, "sessions_open": 1,
            "workers": workers,
        },
    }  # fmt: skip
    for name, value in changes.items():
        for part in (funnel, lineage, whole):
            if name in part:
                part[name] = value
    if "alive" in changes:
        whole["store"]["workers"] = [one for one in workers if one["kind"] in changes["alive"]]
    if "alarms" in changes:
        workers[1]["detail"] = {"alarms": changes["alarms"]}
    return whole


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"gateway": None}, ["nothing is served: the gateway at http://g does not answer"]),
        (
            {"gateway": {"status": "no_engine", "spooling": True}},
            [
                "nothing is served: no engine is ready",
                "Postgres is away from the gateway: turns wait in its spool",
            ],
        ),
        (
            {"gateway": {"status": "draining"}},
            ["the gateway is about to end: it serves on, and is not ready"],
        ),
        (
            {
                "gateway": {
                    "status": "ready",
                    "engines": [
                        {"name": "a", "draining": True, "requests": 2},
                        {"name": "b", "draining": False, "requests": 1},
                    ],
                }
            },
            ["a drains: it gets no new request, and 2 of this gateway's still run on it"],
        ),
        ({"turns": 0}, ["nothing is captured: no turn has been served to a key that captures"]),
        ({"main": 0}, ["nothing is judged: no turn is of a main line"]),
        (
            {"with_next_state": 0},
            ["nothing is judged: no reply has been followed by another message"],
        ),
        ({"alive": ["trainer"]}, ["no judge is alive; 3 turns wait for one"]),
        ({"alarms": ["parse_failures", "drift"]}, ["judging needs a look: drift, parse_failures"]),
        (
            {"alive": ["judge"]},
            ["default does not train: no trainer is alive; 20 samples wait"],
        ),
        ({"trains": False}, ["default does not train: it is switched off for this lineage"]),
        ({"ready": 3}, ["default waits for samples: 3 of 16 for the next version"]),
        (
            {
                "trained": 0, "samples": {"ready": 0, "leased": 0},
                "unscored": {"score_zero": 5, "unclear": 1},
                "untrainable": {"grammar": 2}, "dropped": {"stale": 1},
            },
            ["nothing that was scored can be trained on: 5 score_zero, 2 grammar, 1 unclear"],
        ),
        (
            {"paused": [{"what": "training", "subject": "default", "reason": "a bad batch"}]},
            ["training is paused for default: a bad batch"],
        ),
    ],
)  # fmt: skip
def test_what_keeps_turns_from_their_end_is_said(changes: dict[str, Any], said: list[str]):
    assert notes(found(**changes), SETTINGS) == said


def test_an_absent_database_is_told_with_its_reason():
    absent = {**found(), "store": None, "funnel": None}
    assert notes(absent, SETTINGS, "no route") == ["the database cannot be read: no route"]


def test_an_engine_that_drains_is_shown_with_what_it_has_left():
    console = Console(width=120, record=True, file=io.StringIO())
    engines = [
        {
            "name": name, "healthy": True, "error": None, "running": 3, "queued": 0,
            "serving": {"x": 4}, "draining": name == "a", "requests": 2,
        }
        for name in ("a", "b")
    ]  # fmt: skip
    console.print(screen({**found(gateway={"status": "ready", "engines": engines}), "notes": []}))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["a", "draining,", "2", "left", "3", "0", "v4"] in lines
    assert ["b", "ready", "3", "0", "v4"] in lines


def test_every_process_is_shown_with_what_it_runs_on():
    console = Console(width=120, record=True, file=io.StringIO())
    whole = found()
    console.print(screen({**whole, "notes": ["one thing"]}))
    text = console.export_text()
    assert "Processes of version 9.9, schema 0003" in text
    lines = [line.split() for line in text.splitlines()]
    for kind in ("gateway", "judge", "trainer"):
        assert [kind, "here", "7", "0003", "5", "min", "ago", "0", "s", "ago"] in lines
    assert "• one thing" in text
