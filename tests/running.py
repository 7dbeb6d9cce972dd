"""A gateway that listens, for tests: real sockets, real Postgres, whatever engine is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import openai
import uvicorn
from pydantic import SecretStr

from gateway.api.protocol import BoundedHttp
from gateway.api.server import Server
from gateway.api.services import Services
from gateway.app import create_app
from gateway.config import DatabaseSettings, EngineSettings, ModelSettings, ServerSettings, Settings
from gateway.records import Role
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from tests.fixtures_engine import free_port


def as_stored(text: str) -> str:
    """What Postgres keeps of a text that a client was told: JSON there has no NUL."""
    return text.replace("\0", "\ufffd")


@dataclass(kw_only=True)
class Keys:
    """Secrets of one database: two tenants over one lineage."""

    lineage_id: UUID
    agent: str
    admin: str
    stranger: str


async def make_keys(database_url: str, base_model: str) -> Keys:
    database = await Database.open(DatabaseSettings(), database_url, application="test")
    try:
        keys = KeyStore(database)
        lineage = await keys.ensure_lineage("default", base_model)
        one, other = await keys.ensure_tenant("one"), await keys.ensure_tenant("other")
        _, agent = await keys.create(one, "agent", Role.AGENT, lineage)
        _, admin = await keys.create(one, "admin", Role.ADMIN, lineage)
        _, stranger = await keys.create(other, "agent", Role.AGENT, lineage)
    finally:
        await database.close()
    return Keys(lineage_id=lineage, agent=agent, admin=admin, stranger=stranger)


def gateway_values(database_url: str, model: Path, engine_url: str, home: Path) -> dict[str, Any]:
    """Settings for a gateway, a judge and a trainer on one database and one engine."""
    return {
        "gateway": ServerSettings(
            port=free_port(), max_body_bytes=200_000, keepalive_comment_s=0.3
        ),
        "model": ModelSettings(path=model, name="tiny"),
        "engines": (EngineSettings(name="engine", url=engine_url, idle_timeout_s=30),),
        # Client and gateway share a loop and a busy machine: a pause is no database that is away.
        "database": DatabaseSettings(
            url=SecretStr(database_url),
            spool=home / "spool",
            commit_timeout_s=30,
            command_timeout_s=60,
        ),
    }


@dataclass(kw_only=True)
class Gateway:
    url: str
    keys: Keys
    services: Services

    def client(self, key: str | None = None) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=key or self.keys.agent, max_retries=0, timeout=60
        )

    async def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.services.database.fetch(sql, *values)]

    async def until(self, sql: str, *values: object, within_s: float = 60) -> dict[str, Any]:
        """The first row of a query, as soon as it has one."""
        async with asyncio.timeout(within_s):
            while not (found := await self.rows(sql, *values)):
                await asyncio.sleep(0.05)
        return found[0]


@asynccontextmanager
async def gateway_over(
    database_url: str, model: Path, engine_url: str, home: Path
) -> AsyncIterator[Gateway]:
    """A gateway with keys, in front of one engine, as `gateway_values` has it."""
    keys = await make_keys(database_url, "tiny")
    settings = Settings(**gateway_values(database_url, model, engine_url, home))
    async with running_gateway(settings, keys) as running:
        yield running


@asynccontextmanager
async def running_gateway(settings: Settings, keys: Keys) -> AsyncIterator[Gateway]:
    services = await Services.open(settings)
    config = uvicorn.Config(
        create_app(services),
        port=settings.gateway.port,
        http=BoundedHttp,
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=2,
    )
    server = Server(config, drain_s=0, draining=lambda: None)
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(120):
            while not (server.started and services.pool.ready):
                await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{settings.gateway.port}"
        yield Gateway(url=url, keys=keys, services=services)
    finally:
        server.should_exit = True
        await task
        await services.close()
