"""A gateway over real sockets and a real Postgres, whose engine is the fake one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Settings
from tests.fakes import FakeSglang
from tests.running import Gateway as Running
from tests.running import gateway_values, make_keys, running_gateway
from tests.tiny_model import TEMPLATE, make_model


@dataclass(kw_only=True)
class Gateway(Running):
    engine: FakeSglang

    def says(self, text: str) -> list[int]:
        """Have the engine reply with a text; the ids that it will sample."""
        ids = self.services.tokenizer.encode(text)
        stop = self.services.tokenizer.facts.stop_token_ids[0]
        self.engine.replies.append([*ids, stop])
        return [*ids, stop]

    async def all_aborted(self, least: int) -> None:
        """Wait until that many turns are stored, of which none has ended, and the engine knows."""
        await self.until(f"SELECT 1 FROM turns HAVING count(*) >= {least}")
        turns = await self.rows("SELECT finish_reason, trainable FROM turns")
        assert {(turn["finish_reason"], turn["trainable"]) for turn in turns} == {("abort", False)}
        async with asyncio.timeout(60):
            while not self.engine.aborted:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def fake_gateway(
    database_url: str, model: Path, home: Path, *, chunk_tokens: int = 1, **changed: Any
) -> AsyncIterator[Gateway]:
    """A gateway that serves a model directory as `tiny`; what it keeps on disk is below `home`.

    Settings that are `changed` stand in place of those that tests share.
    """
    async with FakeSglang(model_path=model, chunk_tokens=chunk_tokens) as engine:
        keys = await make_keys(database_url, "tiny")
        settings = Settings(**gateway_values(database_url, model, engine.url, home) | changed)
        async with running_gateway(settings, keys) as running:
            yield Gateway(url=running.url, keys=keys, services=running.services, engine=engine)


@pytest.fixture
async def gateway(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fake_gateway(database_url, tiny_model, tmp_path) as running:
        yield running


@pytest.fixture
async def calling(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose model writes calls as Qwen's do."""
    model = make_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text("{#- writes <tool_call> -#}\n" + TEMPLATE)
    async with fake_gateway(database_url, model, tmp_path) as running:
        yield running
