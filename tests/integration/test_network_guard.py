"""Nothing leaves the host unless it is configured to: gateway and judge as they come."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from gateway.store.database import Database
from gateway.tokens.tokenizer import Tokenizer
from tests.fakes import FakeSglang
from tests.fixtures_engine import free_port
from tests.running import make_keys

ROOT = Path(__file__).parents[2]
#: Addresses that are nobody's (RFC 5737, RFC 6761), by each way out.
ATTEMPTS = """
import asyncio, socket, sys
import aiohttp, uvloop

async def out(way):
    if way == "uvloop":
        await asyncio.get_running_loop().create_connection(asyncio.Protocol, "192.0.2.1", 80)
    elif way == "name":
        await asyncio.get_running_loop().getaddrinfo("nowhere.invalid", 80)
    elif way == "aiohttp":
        async with aiohttp.ClientSession() as http:
            await http.get("http://192.0.2.2/")
    elif way == "socket":
        socket.create_connection(("192.0.2.3", 80))
    else:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("192.0.2.4", 53))

for way in ("uvloop", "name", "aiohttp", "socket", "datagram"):
    try:
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(out(way))
    except OSError:
        continue
    except aiohttp.ClientError:
        continue
    sys.exit(f"{way} was let out")
"""


def environment(home: Path) -> dict[str, str]:
    """Nothing but what finds Python, this checkout and the guard."""
    kept = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "PYTHONPATH": f"{ROOT / 'tests' / 'guard'}:{ROOT}",
        "NETWORK_GUARD": str(home / "guard"),
    }


async def test_the_guard_sees_each_way_out(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ATTEMPTS, env=environment(tmp_path), stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, said.decode()
    noted = [line.partition(" ")[2] for line in (tmp_path / "guard").read_text().splitlines()]
    assert noted[0] == "watched"
    assert [line.rpartition(" ")[2] for line in noted[1:]] == [
        "192.0.2.1",
        "nowhere.invalid",
        "192.0.2.2",
        "192.0.2.3",
        "192.0.2.4",
    ]


@asynccontextmanager
async def started(home: Path, command: str) -> AsyncIterator[None]:
    with (home / f"{command}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", command,
            cwd=home, env=environment(home), stdout=log, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield
        assert process.returncode is None, (home / f"{command}.log").read_text()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 60)


async def ask(http: aiohttp.ClientSession, url: str, *said: str) -> int:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(said)]
    try:
        async with http.post(
            f"{url}/v1/chat/completions", json={"model": "tiny", "messages": messages}
        ) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientConnectionError:
        return 0


async def test_gateway_and_judge_talk_to_this_host_alone(
    database: Database, database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Turns are served, stored and judged; the settings say only where things are."""
    keys = await make_keys(database_url, "tiny")
    async with FakeSglang(model_path=tiny_model) as engine:
        settings = {
            "gateway": {"port": free_port()},
            "model": {"path": str(tiny_model), "name": "tiny"},
            "engines": [{"name": "engine", "url": engine.url}],
            "database": {"url": database_url},
        }
        file = tmp_path / "nextstate.yaml"
        file.write_text(yaml.safe_dump(settings))
        file.chmod(0o600)
        url = f"http://127.0.0.1:{settings['gateway']['port']}"
        headers = {"authorization": f"Bearer {keys.agent}"}
        async with (
            started(tmp_path, "serve"),
            started(tmp_path, "judge"),
            aiohttp.ClientSession(headers=headers) as http,
            asyncio.timeout(240),
        ):
            tokenizer = Tokenizer.load(tiny_model)
            engine.replies.append([*tokenizer.encode("dog"), tokenizer.facts.stop_token_ids[0]])
            while await ask(http, url, "The fox?") != 200:
                await asyncio.sleep(0.1)
            assert await ask(http, url, "The fox?", "dog", "Thanks, that is what I needed.") == 200
            judged = "SELECT count(*) FROM judgements WHERE state = 'done' AND score = 1"
            while await database.fetchval(judged) != 1:
                await asyncio.sleep(0.1)
            workers = await database.fetchval("SELECT count(DISTINCT kind) FROM workers")
            assert workers == 2
    noted = (tmp_path / "guard").read_text().splitlines()
    assert len(noted) >= 2
    assert {line.partition(" ")[2] for line in noted} == {"watched"}
    assert len({line.partition(" ")[0] for line in noted}) >= 2


def test_what_is_here_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NETWORK_GUARD", raising=False)
    from tests.guard.sitecustomize import _is_here

    here = ("127.0.0.1", "::1", "localhost", "", None, "/tmp/x/.s.PGSQL.5432", "0.0.0.0")
    away = ("192.0.2.1", "10.0.0.1", "2001:db8::1", "example.org", "169.254.169.254")
    assert [host for host in here if not _is_here(host)] == []
    assert [host for host in away if _is_here(host)] == []
