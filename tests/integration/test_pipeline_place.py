"""Placing a request on a real database, without serving it."""

from __future__ import annotations

from uuid import UUID

import pytest
import structlog

from bench.replay import key
from gateway.config import ServerSettings, Settings
from gateway.pipeline.place import Placer
from gateway.records import Sampling, TurnRequest, new_id
from gateway.store.database import Database
from gateway.store.turns import TurnStore

SECRET = "What nobody may read"
ASK = TurnRequest(
    dialect="openai_chat",
    model="m",
    messages=({"role": "user", "content": SECRET},),
    sampling=Sampling(),
    session_name="chat-7",
    turn_type="helper",
)


@pytest.mark.parametrize("debug", [True, False])
async def test_a_decision_is_one_line_in_debug_mode(database: Database, *, debug: bool) -> None:
    settings = Settings(gateway=ServerSettings(debug_decisions=debug))
    placer = Placer(settings, TurnStore(database, 16))
    with structlog.testing.capture_logs() as logs:
        place = await placer.place(key(new_id()), ASK, 1000.0)
    assert isinstance(place.session.id, UUID)
    expected = {
        "event": "decided",
        "log_level": "info",
        "session_id": str(place.session.id),
        "parent_session": None,
        "resolve_rule": "named",
        "ambiguous": False,
        "parent": None,
        "retry_of": None,
        "rolled_back": None,
        "branch_reason": None,
        "kind": "unknown",
        "kind_rule": "first_turn",
        "confidence": 0.5,
    }
    assert logs == ([expected] if debug else [])
    assert SECRET not in str(logs)
