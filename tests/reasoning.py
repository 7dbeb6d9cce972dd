"""A gateway whose model reasons and calls tools, and what the model says in tests of clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Settings
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway
from tests.running import gateway_values, make_keys, running_gateway
from tests.unit.chat_models import REASONING, write_model

CALLS = (
    "<think>\nTwo cities.\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)
DONE = "<think>\nGood.\n</think>\n\nWarm."


def called(name: str, arguments: dict[str, Any]) -> str:
    """One call, as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"


@pytest.fixture
async def reasoning_gateway(
    database_url: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> AsyncIterator[Gateway]:
    model = write_model(tmp_path_factory.mktemp("reasons") / "model", REASONING)
    async with FakeSglang(model_path=model) as engine:
        keys = await make_keys(database_url, "tiny")
        settings = Settings(**gateway_values(database_url, model, engine.url, tmp_path))
        async with running_gateway(settings, keys) as running:
            yield Gateway(url=running.url, keys=keys, services=running.services, engine=engine)
