"""A share of noisy lines: the same turns in every event and process, and nothing grave is lost."""

from __future__ import annotations

import io
import json
import logging
import zlib
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config import LogSettings
from gateway.records import new_id
from gateway.telemetry import configure_logging, get_logger, request_context

TURNS = [str(new_id()) for _ in range(400)]


def logged(shares: dict[str, float]) -> list[dict[str, Any]]:
    """Three events of each turn, warnings, and lines of no turn."""
    out = io.StringIO()
    configure_logging(LogSettings(format="json", sample=shares), "gateway", out)
    log = get_logger("one")
    for turn in TURNS:
        # A next state is of the turn before the one that is being served.
        with request_context(turn_id="another"):
            log.info("next_state", of_turn=turn)
        log.info("served", turn_id=turn)
        log.info("scored", turn_id=turn)
        log.warning("served", turn_id=turn)
    for _ in range(40):
        log.info("engine_up")
    for handler in logging.getLogger().handlers:
        handler.close()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def of(lines: list[dict[str, Any]], event: str, key: str = "turn_id") -> set[str]:
    return {line[key] for line in lines if line["event"] == event and line["level"] == "info"}


def test_the_same_turns_are_kept_of_every_event_and_a_smaller_share_is_part_of_a_larger_one():
    lines = logged({"served": 0.5, "next_state": 0.5, "engine_up": 0.25})
    kept = {turn for turn in TURNS if zlib.crc32(turn.encode()) < 2**31}
    assert 0 < len(kept) < len(TURNS)
    assert of(lines, "served") == of(lines, "next_state", "of_turn") == kept
    assert {line["sample"] for line in lines if "sample" in line} == {0.5, 0.25}
    assert of(logged({"served": 0.1}), "served") <= kept
    # What was not named is all there, and so is what somebody has to see.
    assert of(lines, "scored") == {*TURNS}
    assert [line["turn_id"] for line in lines if line["level"] == "warning"] == TURNS
    # Lines of no turn are counted: one of four.
    assert sum(line["event"] == "engine_up" for line in lines) == 10


def test_nothing_is_sampled_unless_it_is_asked_for():
    lines = logged({})
    assert len(lines) == 4 * len(TURNS) + 40
    assert not any("sample" in line for line in lines)
    for wrong in (0, 1.5, -1):
        with pytest.raises(ValidationError):
            LogSettings(sample={"served": wrong})
