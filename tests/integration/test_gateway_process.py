"""`nextstate serve` as a process of its own: what a real signal does to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from gateway.store.database import Database
from tests.fakes import FakeSglang
from tests.fixtures_engine import free_port
from tests.running import make_keys

ROOT = Path(__file__).parents[2]


@dataclass(kw_only=True)
class Serving:
    url: str
    key: str
    file: Path
    log: Path
    process: asyncio.subprocess.Process
    database: Database
    engine: FakeSglang

    async def kind_rule(self) -> str:
        """By which rule a call of the type `helper` is what it is now."""
        headers = {"authorization": f"Bearer {self.key}", "x-turn-type": "helper"}
        body = {"model": "tiny", "messages": [{"role": "user", "content": "The quick brown fox?"}]}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{self.url}/v1/chat/completions", json=body) as answer,
        ):
            said = json.loads(await answer.text())
            assert answer.status == 200, said
        return str(
            await self.database.fetchval("SELECT kind_rule FROM turns ORDER BY id DESC LIMIT 1")
        )

    def rewrite(self, settings: dict[str, Any]) -> None:
        """Other rules, in a file that looks as if nothing had been written."""
        before = self.file.stat()
        text = yaml.safe_dump(settings)
        self.file.write_text(text + "#" * (before.st_size - len(text)))
        os.utime(self.file, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = self.file.stat()
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.fixture
def drain_s() -> float:
    return 0.0


@pytest.fixture
def settings(database_url: str, tiny_model: Path, tmp_path: Path, drain_s: float) -> dict[str, Any]:
    return {
        "gateway": {"port": free_port(), "drain_s": drain_s},
        "model": {"path": str(tiny_model), "name": "tiny"},
        "database": {"url": database_url, "spool": str(tmp_path / "spool")},
        "session_awareness": {"auxiliary_patterns": []},
    }


@pytest.fixture
async def serving(
    settings: dict[str, Any],
    database: Database,
    database_url: str,
    tiny_model: Path,
    tmp_path: Path,
) -> AsyncIterator[Serving]:
    keys = await make_keys(database_url, "tiny")
    async with FakeSglang(model_path=tiny_model) as engine, AsyncExitStack() as stack:
        settings["engines"] = [{"name": "engine", "url": engine.url}]
        file = tmp_path / "nextstate.yaml"
        file.write_text(yaml.safe_dump(settings) + "#" * 200)
        file.chmod(0o600)
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        log = stack.enter_context((tmp_path / "log").open("wb"))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "serve",
            cwd=tmp_path, env={**kept, "PYTHONPATH": str(ROOT), "NEXTSTATE_CONFIG": str(file)},
            stdout=log, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        url = f"http://127.0.0.1:{settings['gateway']['port']}"
        try:
            await _ready(f"{url}/readyz", process)
            yield Serving(
                url=url, key=keys.agent, file=file, log=tmp_path / "log", process=process,
                database=database, engine=engine,
            )  # fmt: skip
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(120), aiohttp.ClientSession() as http:
        while process.returncode is None:
            try:
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    raise AssertionError(f"the gateway ended with {process.returncode}")


async def test_sighup_reads_the_rules_again_and_sigterm_ends_it(
    serving: Serving, settings: dict[str, Any]
) -> None:
    assert await serving.kind_rule() == "first_turn"
    settings["session_awareness"] = {"auxiliary_patterns": ["helper"]}
    serving.rewrite(settings)
    assert await serving.kind_rule() == "first_turn"
    serving.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(60):
        while await serving.kind_rule() != "auxiliary_pattern":
            await asyncio.sleep(0.05)
    # Rules that are wrong leave those in force as they are, and the process where it is.
    settings["session_awareness"] = {"auxiliary_patterns": ["("]}
    serving.rewrite(settings)
    serving.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(60):
        while "session_rules_kept" not in serving.log.read_text():
            await asyncio.sleep(0.05)
    assert await serving.kind_rule() == "auxiliary_pattern"
    serving.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        assert await serving.process.wait() in (0, -signal.SIGTERM)


@pytest.mark.parametrize("drain_s", [3600.0])
async def test_it_is_not_ready_before_it_closes_and_ends_what_is_in_flight(
    serving: Serving,
) -> None:
    # Without a token that ends a reply.
    serving.engine.script = lambda _: [*range(10, 18)]
    headers = {"authorization": f"Bearer {serving.key}"}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 8}
    chat = f"{serving.url}/v1/chat/completions"
    async with aiohttp.ClientSession(headers=headers) as http:

        async def ready() -> tuple[int, str]:
            async with http.get(f"{serving.url}/readyz") as answer:
                return answer.status, (await answer.json())["status"]

        assert await ready() == (200, "ready")
        serving.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            while (told := await ready())[0] == 200:
                await asyncio.sleep(0.05)
        assert told == (503, "draining")
        # Whoever has not heard of it yet is served, and keeps no connection.
        async with http.post(chat, json=body) as answer:
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        async with http.post(chat, json={**body, "stream": True}) as answer:
            assert answer.status == 200
            said = await answer.content.readuntil(b"\n\n")
            serving.engine._resumed.clear()
            reader, late = await _connected(serving.url)
            serving.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                while not await _refused(serving.url):
                    await asyncio.sleep(0.05)
            # Whoever has connected before is heard.
            late.write(b"GET /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n")
            assert (await reader.read()).endswith(b'{"status":"ok"}')
            late.close()
            serving.engine._resumed.set()
            said += await answer.content.read()
        assert said.endswith(b"data: [DONE]\n\n")
    async with asyncio.timeout(60):
        assert await serving.process.wait() in (0, -signal.SIGTERM)
    stored = await serving.database.fetch("SELECT finish_reason, delivered FROM turns")
    assert [tuple(row) for row in stored] == [("length", True)] * 2


async def _connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def _refused(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/healthz"):
            return False
    except aiohttp.ClientConnectorError:
        return True
