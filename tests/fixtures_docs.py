"""A gateway as the guides suppose it: the model is called `nextstate`, one turn was served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from gateway.config import ModelSettings, Settings
from tests.docs import Block, environ
from tests.fakes import FakeSglang
from tests.running import gateway_values, make_keys, running_gateway

Ran = Callable[[Block], Awaitable[tuple[int, str]]]


@pytest.fixture
async def run_block(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Ran]:
    """Run a block; its exit code, and what it said."""
    async with FakeSglang(model_path=tiny_model, name="nextstate") as engine:
        keys = await make_keys(database_url, "tiny")
        values = gateway_values(database_url, tiny_model, engine.url, tmp_path)
        values["gateway"] = values["gateway"].model_copy(update={"operators": "one"})
        values["model"] = ModelSettings(path=tiny_model, name="nextstate", aliases=("*",))
        settings = Settings(**values)
        written = {
            "gateway": {"port": settings.gateway.port},
            "model": {"path": str(tiny_model), "name": "nextstate"},
            "engines": [{"name": "engine", "url": engine.url}],
            "database": {"url": database_url},
        }
        (tmp_path / "nextstate.yaml").write_text(yaml.safe_dump(written))
        stop = (2,)
        async with running_gateway(settings, keys) as gateway:
            engine.script = lambda body: [*gateway.services.tokenizer.encode("Hi."), *stop]
            async with gateway.client() as client:
                reply = await client.chat.completions.with_raw_response.create(
                    model="nextstate", messages=[{"role": "user", "content": "Hello"}]
                )
            variables = environ(
                gateway.url,
                keys.agent,
                keys.admin,
                TURN_ID=reply.headers["x-nextstate-turn-id"],
                SESSION_ID=reply.headers["x-nextstate-session-id"],
            )

            async def run(block: Block) -> tuple[int, str]:
                command = await asyncio.to_thread(block.command)
                process = await asyncio.create_subprocess_exec(
                    *command,
                    cwd=block.directory(tmp_path),
                    env=variables,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )
                try:
                    said, _ = await asyncio.wait_for(process.communicate(), 240)
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
                return process.returncode or 0, said.decode()

            yield run
