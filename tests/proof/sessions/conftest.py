"""The talking model, one real engine for the whole proof, and where progress is kept."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.local.environments import checkout
from tests.fixtures_engine import running_sglang
from tests.proof.sessions.talker import make_talker

_SOURCES = ("gateway", "tests/proof/sessions")


@pytest.fixture(scope="session")
def progress() -> Path:
    """Where finished parts are kept: another one as soon as the code is another."""
    root = checkout()
    digest = hashlib.sha256()
    for source in sorted(path for name in _SOURCES for path in (root / name).rglob("*.py")):
        digest.update(source.read_bytes())
    home = root / "build" / "proof" / "sessions" / digest.hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    return home


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_talker(tmp_path_factory.mktemp("talker") / "model")


@pytest.fixture(scope="session")
async def talking_url(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    log = tmp_path_factory.mktemp("talking") / "server.log"
    async with running_sglang(talker, log) as process:
        yield process.url


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print past pytest's capture."""

    def out(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    return out
