"""How each process of the stack is started and when it counts as ready."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

from gateway.config import SECTIONS
from gateway.device import device
from gateway.engine.sglang import SglangEngine
from gateway.errors import StackError, StoreUnavailable
from gateway.local.child import ChildSpec, polled
from gateway.local.config import LocalSettings
from gateway.local.environments import engine_python
from gateway.local.postgres import EmbeddedPostgres
from gateway.local.sglang import LoraLimits, launch_command, wait_ready
from gateway.store.database import Database

_SETTING_VARIABLES = tuple(f"NEXTSTATE_{section.upper()}" for section in SECTIONS)

#: Left open, the engine would take most of the machine's memory.
_CPU_TOKENS, _CPU_RUNNING = 24_576, 24

_LOOK_S = 0.2


def postgres(server: EmbeddedPostgres, settings: LocalSettings) -> ChildSpec:
    return ChildSpec(
        name="postgres",
        prepare=server.prepare,
        command=server.command,
        ready=lambda: polled(server.ready),
        ready_within_s=settings.local.start_s,
        stop_signal=signal.SIGINT,
        grace_s=20.0,
        tether=False,
    )


def engine(settings: LocalSettings) -> ChildSpec:
    """SGLang on this machine's device, for the first configured engine.

    Raises StackError where it is not installed.
    """
    python = engine_python()
    if not python.exists():
        raise StackError("the engine is not installed: run `nextstate setup`")
    local, lora, one = settings.local, settings.trainer.lora, settings.engines[0]
    kind = device()
    on_cpu = kind == "cpu"
    argv, environment = launch_command(
        python,
        settings.model.path or "",
        int(one.url.rpartition(":")[2]),
        device=kind,
        served_name=settings.model.name,
        lora=LoraLimits(max_rank=lora.rank, target_modules=lora.target_modules),
        max_total_tokens=local.engine_max_tokens or (_CPU_TOKENS if on_cpu else None),
        max_running=local.engine_max_running or (_CPU_RUNNING if on_cpu else None),
        context_length=settings.model.context_length,
    )

    async def ready() -> None:
        client = SglangEngine(one)
        try:
            await wait_ready(client, local.engine_start_s)
        finally:
            await client.close()

    return ChildSpec(
        name="engine",
        command=lambda: argv,
        environment=environment,
        ready=ready,
        ready_within_s=local.engine_start_s + 5,
    )


def gateway(settings: LocalSettings, file: Path, url: str) -> ChildSpec:
    return _component(
        "gateway",
        "serve",
        file,
        ready=lambda: _answers(f"{url}/readyz"),
        ready_within_s=settings.local.start_s,
        grace_s=settings.gateway.drain_s + settings.gateway.shutdown_grace_s + 5,
    )


def worker(kind: str, command: str, settings: LocalSettings, file: Path) -> ChildSpec:
    """A judge or a trainer; ready once it reports itself to the store."""
    return _component(
        kind,
        command,
        file,
        ready=lambda: _reports(settings, kind),
        ready_within_s=settings.local.start_s,
        grace_s=20.0,
    )


def free_port(host: str, port: int) -> int:
    """`port` if it can be bound, or one that is free for 0. Raises StackError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StackError(
                f"cannot listen on {host}:{port}: {error.strerror}; "
                "choose another with NEXTSTATE_GATEWAY__PORT"
            ) from error
        found: int = probe.getsockname()[1]
        return found


def _component(name: str, command: str, file: Path, **how: Any) -> ChildSpec:
    """One of our own processes. It reads `file` alone, not the variables that led to it."""
    return ChildSpec(
        name=name,
        command=lambda: [sys.executable, "-m", "gateway", command],
        environment={"NEXTSTATE_CONFIG": str(file), "OMP_NUM_THREADS": "1"},
        without=lambda key: key == "DATABASE_URL" or key.startswith(_SETTING_VARIABLES),
        **how,
    )


async def _answers(url: str) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(_LOOK_S)


async def _reports(settings: LocalSettings, kind: str) -> None:
    """Return once a worker of this kind has reported itself after this call."""
    query = "SELECT EXISTS (SELECT FROM workers WHERE kind = $1 AND heartbeat_at > $2)"
    since: datetime | None = None
    while True:
        # Postgres may be on its way back as well.
        with contextlib.suppress(StoreUnavailable):
            database = await Database.open(
                settings.database, settings.database_url, application="nextstate-up"
            )
            try:
                since = since or await database.fetchval("SELECT now()")
                while not await database.fetchval(query, kind, since):  # noqa: ASYNC110 - a poll
                    await asyncio.sleep(_LOOK_S)
                return
            finally:
                await database.close()
        await asyncio.sleep(_LOOK_S)
