"""10,000 made-up requests of the whole OpenAPI document, and two tenants at one gateway.

schemathesis runs all its checks and phases, links between routes included, with an operator's key
on the routes for operators and an agent's on those for agents. All of it is derived from seeds;
how many cases there were is in `build/proof/operate/document.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config import ServerSettings
from tests.fixtures_engine import free_port
from tests.fixtures_gateway import Gateway, fake_gateway
from tests.fuzz.document import CONFIG
from tests.fuzz.gateway import any_reply
from tests.fuzz.sides import sides
from tests.fuzz.tenants import wander
from tests.seeded import Seeded, seeded
from tests.unit.chat_models import REASONING, write_model

ROOT = Path(__file__).parents[3]
RECORD = ROOT / "build" / "proof" / "operate" / "document.json"
#: Paths, made-up examples of an operation, and how many cases there are at least in all phases.
PARTS = {
    "admin": ("^/(admin|healthz|readyz)", 150, 6_500),
    "agent": ("^/v1/", 250, 3_500),
}


@pytest.fixture
async def operated(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose operators are tenant `one`, and whose engine answers in every form."""
    server = ServerSettings(port=free_port(), operators="one", max_body_bytes=200_000)
    model = write_model(tmp_path / "model", REASONING)
    async with fake_gateway(
        database_url, model, tmp_path, chunk_tokens=4, gateway=server
    ) as running:
        running.engine.script = lambda body: any_reply(running, body)
        yield running


@pytest.fixture
async def world(operated: Gateway, database_url: str, tmp_path: Path) -> AsyncIterator[Seeded]:
    async with seeded(database_url, operated.keys, tmp_path) as found:
        yield found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", PARTS)
async def test_the_whole_document_holds(operated: Gateway, world: Seeded, part: str) -> None:
    paths, examples, least = PARTS[part]
    keys = {"admin": operated.keys.admin, "agent": operated.keys.agent}
    generated = await held(operated.url, keys[part], paths, examples)
    keep(part, generated=generated)
    assert generated >= least


async def held(url: str, key: str, paths: str, examples: int) -> int:
    """How many requests schemathesis made of these paths; it found nothing wrong with any."""
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("schemathesis"),
        *("--config-file", CONFIG, "run", f"{url}/admin/v1/openapi.json"),
        *("-H", f"Authorization: Bearer {key}", "--checks", "all"),
        *("--include-path-regex", paths, "--max-examples", str(examples), "--seed", "7"),
        *("--continue-on-failure", "--no-color", "--generation-database", "none"),
        # By default a document, and any answer, that takes 10 s is an error.
        *("--wait-for-schema", "300", "--request-timeout", "120"),
        cwd=ROOT,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "tests.fuzz.hooks"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told = (await process.communicate())[0].decode()
    assert process.returncode == 0, told[-8_000:]
    counted = re.search(r"(\d+) generated, (\d+) passed", told)
    assert counted is not None, told[-2_000:]
    assert counted[1] == counted[2], told[-2_000:]
    return int(counted[1])


@pytest.mark.timeout(3600)
async def test_two_tenants_stay_apart(database_url: str, tiny_model: Path, tmp_path: Path) -> None:
    async with (
        fake_gateway(database_url, tiny_model, tmp_path) as gateway,
        seeded(database_url, gateway.keys, tmp_path) as found,
    ):
        pair = await sides(gateway, found)
        await asyncio.to_thread(wander, gateway.url, pair, 100, 50)
        keep("tenants", asked=[side.asked for side in pair])
        assert sum(side.asked for side in pair) > 2_000


def keep(part: str, **counts: object) -> None:
    """Say how many there were."""
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record | {part: counts}, indent=1))
