"""The systems that are compared: how each is started, and where it is asked."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.load import Target
from bench.model import NAME
from bench.passthrough import BASELINES
from bench.processes import NotReady, Process, cores, pin, python
from gateway.config import DatabaseSettings
from gateway.local.postgres import EmbeddedPostgres
from gateway.local.processes import free_port
from gateway.records import Role
from gateway.store.database import Database, migrate
from gateway.store.keys import KeyStore

NEXTSTATE, LITELLM = "nextstate", "litellm"
_READY_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One that runs. `store_pid` is its PostgreSQL's."""

    name: str
    pid: int
    target: Target
    store_pid: int | None = None


def names() -> list[str]:
    """All that can be measured here, the gateway first."""
    return [NEXTSTATE, *BASELINES, *([LITELLM] if _litellm() else [])]


def _litellm() -> str | None:
    """LiteLLM's command, where its proxy is installed."""
    beside = shutil.which("litellm", path=str(Path(sys.executable).parent))
    return beside if beside and importlib.util.find_spec("litellm") else None


class Systems:
    """Starts systems; `stack` ends them."""

    def __init__(
        self,
        stack: AsyncExitStack,
        *,
        home: Path,
        logs: Path,
        upstream_port: int,
        say: Callable[[str], None],
    ) -> None:
        self._stack, self._home, self._logs = stack, home, logs
        self._upstream_port = upstream_port
        self._say = say
        self.database_url = ""

    async def start(self, name: str, model: Path) -> System:
        """Raises NotReady, and what the gateway's own parts raise."""
        self._say(f"starting {name}")
        port = free_port("127.0.0.1", 0)
        if name == NEXTSTATE:
            return await self._nextstate(port, model)
        if name == LITELLM:
            return await self._proxy(port)
        command = python("-m", "bench.passthrough", name, str(port), str(self._upstream_port))
        process = self._process(name, command)
        await process.listening(port)
        return System(name=name, pid=process.pid, target=Target(port=port))

    async def _nextstate(self, port: int, model: Path) -> System:
        """The gateway as it is run, all settings left as they are, on a PostgreSQL of its own."""
        server = EmbeddedPostgres(self._home / "postgres")
        self._stack.callback(server.stop)
        # In this thread: the server is tied to the one that starts it.
        self.database_url = server.start()
        pin(server.pid, cores()[1])
        await migrate(self.database_url)
        key = await self._key()
        settings = self._home / "nextstate.yaml"
        settings.write_text(yaml.safe_dump(self._settings(port, model)))
        settings.chmod(0o600)
        process = self._process(
            NEXTSTATE, python("-m", "gateway", "serve"), {"NEXTSTATE_CONFIG": str(settings)}
        )
        await process.listening(port)
        await _ready(f"http://127.0.0.1:{port}/readyz", process)
        target = Target(port=port, headers={"authorization": f"Bearer {key}"})
        return System(name=NEXTSTATE, pid=process.pid, target=target, store_pid=server.pid)

    def _settings(self, port: int, model: Path) -> dict[str, Any]:
        return {
            "gateway": {"port": port},
            "model": {"path": str(model), "name": NAME},
            "engines": [{"name": "upstream", "url": f"http://127.0.0.1:{self._upstream_port}"}],
            "database": {"url": self.database_url, "spool": str(self._home / "spool")},
        }

    async def _key(self) -> str:
        database = await Database.open(DatabaseSettings(), self.database_url, application="bench")
        try:
            keys = KeyStore(database)
            lineage = await keys.ensure_lineage("default", NAME)
            tenant = await keys.ensure_tenant("bench")
            _, secret = await keys.create(tenant, "bench", Role.AGENT, lineage)
        finally:
            await database.close()
        return secret

    async def _proxy(self, port: int) -> System:
        command = _litellm()
        assert command is not None
        base = f"http://127.0.0.1:{self._upstream_port}/v1"
        parameters = {"model": f"openai/{NAME}", "api_base": base, "api_key": "none"}
        content = {"model_list": [{"model_name": NAME, "litellm_params": parameters}]}
        config = self._home / "litellm.yaml"
        config.write_text(yaml.safe_dump(content))
        flags = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        process = self._process(LITELLM, [command, *flags, "--num_workers", "1"], local)
        await process.listening(port, 120)
        return System(name=LITELLM, pid=process.pid, target=Target(port=port))

    def _process(
        self, name: str, command: list[str], environment: dict[str, str] | None = None
    ) -> Process:
        log = self._logs / f"{name}.log"
        process = Process(name, command, log=log, on=cores()[0], environment=environment)
        self._stack.callback(process.stop)
        return process


async def _ready(url: str, process: Process) -> None:
    """Wait until the gateway has found its engine. Raises NotReady."""
    try:
        async with asyncio.timeout(_READY_WITHIN_S), aiohttp.ClientSession() as session:
            while True:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise NotReady(f"{process.name} has not found its engine; see {process.log}") from None
