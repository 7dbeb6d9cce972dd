"""The stack on a real PostgreSQL; a plain web server stands where the gateway would."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
import yaml
from pydantic import SecretStr

from gateway.config import SECTIONS, DatabaseSettings, EngineSettings, ServerSettings
from gateway.errors import ConfigError, StackError
from gateway.local import launch, processes, state
from gateway.local.child import ChildSpec, polled
from gateway.local.config import LocalConfig, LocalSettings
from gateway.local.leftovers import left_behind
from gateway.local.stack import Stack
from gateway.records import Role
from gateway.store.database import Database
from gateway.store.keys import KeyStore


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("NEXTSTATE_CONFIG", raising=False)
    for section in SECTIONS:
        monkeypatch.delenv(f"NEXTSTATE_{section.upper()}", raising=False)
    with tempfile.TemporaryDirectory(prefix="nxs-stack-") as base:
        monkeypatch.chdir(base)
        yield Path(base) / "home"
        assert left_behind(Path(base) / "home") == []


@pytest.fixture
def settings(home: Path) -> LocalSettings:
    """One with an engine of someone else's, a model of no weights, and no workers."""
    model = home.parent / "tiny"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return LocalSettings(
        gateway=ServerSettings(port=port),
        engines=(EngineSettings(url="http://127.0.0.1:9"),),
        local=LocalConfig(home=home, model=str(model), judge=False, trainer=False, start_s=30),
    )


@pytest.fixture
def attached(settings: LocalSettings, database_url: str) -> LocalSettings:
    """The same on a database that is there, which is faster."""
    database = DatabaseSettings(url=SecretStr(database_url))
    return settings.model_copy(update={"database": database})


@pytest.fixture(autouse=True)
def web_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(settings: LocalSettings, file: Path, url: str) -> ChildSpec:
        port = str(settings.gateway.port)
        return ChildSpec(
            name="gateway",
            command=lambda: [sys.executable, "-m", "http.server", "-b", "127.0.0.1", port],
            ready=lambda: polled(lambda: _listens(settings.gateway.port), every_s=0.02),
            ready_within_s=20.0,
        )

    monkeypatch.setattr(processes, "gateway", stand_in)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def until(condition: object) -> None:
    async with asyncio.timeout(120):
        await polled(condition, every_s=0.02)  # type: ignore[arg-type]


async def test_brings_up_a_database_and_keys_that_last(settings: LocalSettings) -> None:
    home = settings.home
    async with Stack(settings) as stack:
        found = state.running(home)
        assert found is not None
        assert (found.phase, found.url) == ("ready", stack.url)
        assert set(found.processes) == {"postgres", "gateway"}

        content = yaml.safe_load((home / "settings.yaml").read_text())
        assert content["model"]["path"] == str(home.parent / "tiny")
        assert content["trainer"]["directory"] == str(home / "policies")
        assert content["engines"] == [{"url": "http://127.0.0.1:9"}]
        url = content["database"]["url"]
        for name in ("settings.yaml", "key", "admin-key"):
            assert stat.S_IMODE((home / name).stat().st_mode) == 0o600

        database = await Database.open(DatabaseSettings(), url, application="test")
        await database.check_revision()
        agent = await KeyStore(database).principal(stack.key())
        admin = await KeyStore(database).principal(stack.key(Role.ADMIN))
        await database.close()
        assert (agent.role, agent.tenant) == (Role.AGENT, "default")
        assert (admin.role, admin.lineage_id) == (Role.ADMIN, agent.lineage_id)
        first = stack.key()

    assert state.running(home) is None
    async with Stack(settings) as stack:
        assert stack.key() == first


async def test_a_killed_postgres_comes_back(settings: LocalSettings) -> None:
    async with Stack(settings):
        before = state.read(settings.home)
        assert before is not None
        pid = before.processes["postgres"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        def back() -> bool:
            found = state.read(settings.home)
            assert found is not None
            server = found.processes["postgres"]
            return server.restarts == 1 and server.state == "ready"

        await until(back)
        url = yaml.safe_load((settings.home / "settings.yaml").read_text())["database"]["url"]
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT count(*) FROM api_keys") == 2
        await connection.close()


async def test_one_stack_a_directory_and_the_second_harms_nothing(attached: LocalSettings) -> None:
    async with Stack(attached):
        before = state.read(attached.home)
        with pytest.raises(StackError, match="a stack already runs in"):
            await Stack(attached).start()
        assert state.read(attached.home) == before
        assert _listens(attached.gateway.port)


async def test_a_port_in_use_is_said_before_anything_starts(settings: LocalSettings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.gateway.port))
        taken.listen()
        with pytest.raises(StackError, match=r"cannot listen on 127.0.0.1:\d+: Address already"):
            await Stack(settings).start()
    found = state.read(settings.home)
    assert found is not None
    assert found.phase == "failed"
    assert not (settings.home / "postgres").exists()


async def test_an_unknown_model_is_said_before_anything_starts(attached: LocalSettings) -> None:
    wrong = attached.model_copy(
        update={"local": attached.local.model_copy(update={"model": "gpt-9"})}
    )
    with pytest.raises(ConfigError, match="model 'gpt-9' is neither"):
        await Stack(wrong).start()


async def test_a_component_that_cannot_start_takes_all_down_with_its_last_words(
    attached: LocalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(kind: str, command: str, settings: LocalSettings, file: Path) -> ChildSpec:
        script = "echo cannot find my rules; exit 4"
        return ChildSpec(
            name=kind,
            command=lambda: ["sh", "-c", script],
            ready=asyncio.Event().wait,  # type: ignore[arg-type]
            ready_within_s=20.0,
        )

    monkeypatch.setattr(processes, "worker", broken)
    judged = attached.model_copy(
        update={"local": attached.local.model_copy(update={"judge": True})}
    )
    with pytest.raises(StackError) as caught:
        await Stack(judged).start()
    assert caught.value.message == (
        "judge ended while it was starting (exit code 4)\n  | cannot find my rules"
    )
    assert state.running(attached.home) is None
    found = state.read(attached.home)
    assert found is not None
    assert found.error == caught.value.message


async def test_a_database_of_ones_own_is_used_and_migrated(
    settings: LocalSettings, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    async with Stack(settings):
        found = state.read(settings.home)
        assert found is not None
        assert set(found.processes) == {"gateway"}
        connection = await asyncpg.connect(empty_database_url)
        assert await connection.fetchval("SELECT name FROM lineages") == "default"
        await connection.close()


@pytest.mark.parametrize("step", ["checking", "starting the gateway", "ready"])
async def test_a_signal_at_any_step_takes_all_down(attached: LocalSettings, step: str) -> None:
    def say(now: str) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGTERM)

    async def body(stack: Stack) -> str:
        if step == "ready":
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        return "done"

    result = await asyncio.wait_for(launch.run(attached, body, say=say), 60)

    assert result is None
    assert state.running(attached.home) is None


async def test_a_signal_while_postgres_starts_takes_it_down(settings: LocalSettings) -> None:
    def say(now: str) -> None:
        if now == "starting PostgreSQL":
            os.kill(os.getpid(), signal.SIGTERM)

    async def body(stack: Stack) -> None:
        await asyncio.sleep(60)

    assert await asyncio.wait_for(launch.run(settings, body, say=say), 60) is None
    async with Stack(settings):
        assert _listens(settings.gateway.port)


async def test_a_body_that_ends_takes_the_stack_down(attached: LocalSettings) -> None:
    async def body(stack: Stack) -> int:
        assert _listens(attached.gateway.port)
        return 7

    assert await launch.run(attached, body, say=lambda _: None) == 7
    assert not _listens(attached.gateway.port)
