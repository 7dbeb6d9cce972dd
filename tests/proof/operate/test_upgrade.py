"""The previous revision's own build and this one, replaced one by the other under load.

    old migrate ─ old gateways A, B ─ new migrate ─ new gateway C ─ A ends ─ new D ─ B, C end
                  └────────────────── agents talk all the while, through a balancer ───────┘

The build before could not say that it was about to end, so its gateways are taken out of the
balancer first. This one's is ended while it is asked: connections are taken until it is closed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import asyncpg
import yaml

from gateway.store.database import REVISIONS
from tests.fakes import FakeSglang
from tests.fixtures_engine import free_port
from tests.proof.operate import previous
from tests.rolling import Agents
from tests.running import make_keys

NEW = Path(__file__).parents[3]
AGENTS = 12
#: Answers between any two steps.
PACE = 150


@dataclass
class Build:
    """One checkout, and what its processes are given."""

    root: Path
    home: Path
    settings: dict[str, object]
    database_url: str

    async def run(self, *words: str) -> str:
        """A command of it, to its end; what it said."""
        process = await self._start(*words, output=asyncio.subprocess.PIPE)
        said, _ = await asyncio.wait_for(process.communicate(), 300)
        assert process.returncode == 0, said.decode()
        return said.decode()

    @asynccontextmanager
    async def gateway(self, name: str) -> AsyncIterator[Running]:
        """A gateway of it that is ready; it is told to end on the way out, unless it has."""
        port = free_port()
        with (self.home / f"{name}.log").open("wb") as log:
            process = await self._start("serve", output=log, port=port, name=name)
        running = Running(f"http://127.0.0.1:{port}", process, self.home / f"{name}.log")
        try:
            await running.ready()
            yield running
        finally:
            await running.end()

    async def _start(
        self, *words: str, output: object, port: int | None = None, name: str = "command"
    ) -> asyncio.subprocess.Process:
        file = self.home / f"{name}-{port}.yaml"
        # However slow this machine is, what is looked for is in Postgres at the end.
        database = {"spool": str(self.home / f"spool-{name}"), "commit_timeout_s": 60}
        content = {**self.settings, "database": database}
        if port is not None:
            content["gateway"] = {"port": port}
        file.write_text(yaml.safe_dump(content))
        kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *words,
            cwd=self.home,
            env={
                **kept,
                "PYTHONPATH": str(self.root),
                "NEXTSTATE_CONFIG": str(file),
                "DATABASE_URL": self.database_url,
            },
            stdout=output, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip


@dataclass
class Running:
    url: str
    process: asyncio.subprocess.Process
    log: Path

    async def ready(self) -> None:
        async with asyncio.timeout(180), aiohttp.ClientSession() as http:
            while self.process.returncode is None:
                try:
                    async with http.get(f"{self.url}/readyz") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)
        raise AssertionError(self.log.read_text()[-4000:])

    async def end(self) -> None:
        """As a container is: told once, and given time."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                await self.process.wait()
        assert self.process.returncode in (0, -signal.SIGTERM)


async def revision(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("SELECT version_num FROM alembic_version"))
    finally:
        await connection.close()


async def test_the_build_before_and_this_one_serve_one_database_and_no_request_fails(
    empty_database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    url, root = empty_database_url, tmp_path / "previous"
    await asyncio.to_thread(previous.extract, root)
    assert (root / "gateway").is_dir()
    stop = asyncio.Event()
    async with FakeSglang(model_path=tiny_model) as engine:
        settings: dict[str, object] = {
            "model": {"path": str(tiny_model), "name": "tiny"},
            "engines": [{"name": "engine", "url": engine.url}],
        }
        old = Build(root, tmp_path, settings, url)
        new = Build(NEW, tmp_path, settings, url)
        await old.run("migrate")
        assert await revision(url) == REVISIONS[-2]
        key = (await make_keys(url, "tiny")).agent
        async with old.gateway("a") as a, old.gateway("b") as b:
            agents = Agents([a.url, b.url], key, count=AGENTS)
            talking = asyncio.create_task(agents.talk(stop))
            await agents.more(PACE)
            await new.run("migrate")
            assert await revision(url) == REVISIONS[-1]
            await agents.more(PACE)
            async with new.gateway("c") as c:
                agents.gateways.append(c.url)
                await agents.more(PACE)
                agents.gateways.remove(a.url)
                await agents.more(PACE)
                await a.end()
                async with new.gateway("d") as d:
                    agents.gateways.append(d.url)
                    await agents.more(PACE)
                    agents.gateways.remove(b.url)
                    await agents.more(PACE)
                    await b.end()
                    await c.end()
                    await agents.more(PACE)
                    stop.set()
                    await talking
        assert agents.failures == []
        assert {*agents.by_gateway} == {one.url for one in (a, b, c, d)}
        for one in (a, b, c, d):
            assert '"level":"error"' not in one.log.read_text().replace(" ", "")
    connection = await asyncpg.connect(url)
    turns = await connection.fetch("SELECT session_id, depth, delivered FROM turns")
    following = await connection.fetchval("SELECT count(*) FROM next_states")
    await connection.close()
    assert len(turns) == agents.asked > 7 * PACE
    assert all(row["delivered"] for row in turns)
    # Each session is one line of turns, whoever served them, and nothing between them is lost.
    sessions = {row["session_id"] for row in turns}
    assert len(sessions) == agents.sessions
    for session in sessions:
        depths = sorted(row["depth"] for row in turns if row["session_id"] == session)
        assert depths == list(range(len(depths)))
    assert following == agents.asked - agents.sessions
