"""A gateway as agents use it: any model name, room for long prompts, and an engine with a script.

Clients reach it through a recorder, and no other host at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config import ModelSettings, Settings
from tests.fakes import FakeSglang
from tests.fixtures_gateway import Gateway
from tests.recorder import Recorder, recording
from tests.running import gateway_values, make_keys, running_gateway
from tests.unit.chat_models import REASONING, write_model

TURNS = (
    "SELECT t.*, s.external_id, n.messages AS followed_by, n.role AS followed_by_role "
    "FROM turns t JOIN sessions s ON s.id = t.session_id "
    "LEFT JOIN next_states n ON n.turn_id = t.id ORDER BY t.id"
)

#: The text of a reply to a prompt, whose special tokens are left out.
Answer = Callable[[str], str]


@dataclass(kw_only=True)
class Served(Gateway):
    """`url` is the gateway's own, `recorder.url` what a client is given."""

    recorder: Recorder

    def answers(self, answer: Answer) -> None:
        """Have the engine reply to each prompt with what `answer` says."""
        tokenizer = self.services.tokenizer
        stop = tokenizer.facts.stop_token_ids[0]

        def script(body: dict[str, Any]) -> list[int]:
            return [*tokenizer.encode(answer(tokenizer.decode(body["input_ids"]))), stop]

        self.engine.script = script

    async def turns(self) -> list[dict[str, Any]]:
        return await self.rows(TURNS)


@asynccontextmanager
async def serving(database_url: str, home: Path) -> AsyncIterator[Served]:
    """A gateway whose model reasons and calls tools."""
    model = write_model(home / "model", REASONING, max_position_embeddings=400_000)
    # More than one token at a time, as a real engine may give.
    async with FakeSglang(model_path=model, chunk_tokens=4) as engine:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, model, engine.url, home)
        values["gateway"] = values["gateway"].model_copy(update={"max_body_bytes": 8_000_000})
        values["model"] = ModelSettings(path=model, name="tiny", aliases=("*",))
        async with (
            running_gateway(Settings(**values), keys) as running,
            recording(running.url) as recorder,
        ):
            yield Served(
                url=running.url,
                keys=keys,
                services=running.services,
                engine=engine,
                recorder=recorder,
            )
