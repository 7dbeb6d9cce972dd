"""Engines for tests: a fake, and the real SGLang on a tiny model, one server a session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.config import EngineSettings
from gateway.engine.sglang import SglangEngine
from gateway.local.sglang import LoraLimits, launch_command, wait_ready
from gateway.local.tether import tethered
from tests.fakes import FakeSglang
from tests.ports import free_port
from tests.tiny_model import make_model

START_TIMEOUT_S = 240.0


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny random Qwen3 with tokenizer and ChatML template."""
    return make_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
async def fake_sglang() -> AsyncIterator[FakeSglang]:
    """A fake engine of vocabulary 512, listening."""
    async with FakeSglang() as fake:
        yield fake


class SglangProcess:
    """The real server as a process group of its own, which ends with this process."""

    def __init__(
        self, model: Path, log: Path, *, max_total_tokens: int = 16384, sees: Sequence[Path] = ()
    ) -> None:
        """A model of images needs what it `sees` with: packages that the engine's stub lacks."""
        self.log = log
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        argv, env = launch_command(
            engine_python(),
            model,
            port,
            device="cpu",
            served_name="tiny",
            lora=None if sees else LoraLimits(),
            max_total_tokens=max_total_tokens,
            max_running=16,
        )
        if sees:
            argv += ["--enable-multimodal", "--mm-attention-backend", "sdpa"]
            env["PYTHONPATH"] = os.pathsep.join([*map(str, sees), env["PYTHONPATH"]])
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                tethered(argv, signal="KILL"),
                env=os.environ | env,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def alive(self) -> bool:
        return self._process.poll() is None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=30)


def engine_python() -> str:
    """The interpreter of SGLang's own environment."""
    if named := os.environ.get("NEXTSTATE_ENGINE_PYTHON"):
        return named
    from gateway.local.environments import engine_python as installed

    return str(installed())


@asynccontextmanager
async def running_sglang(
    model: Path, log: Path, *, max_total_tokens: int = 16384, sees: Sequence[Path] = ()
) -> AsyncIterator[SglangProcess]:
    """The real server, ready. What it wrote is shown where it fails to start."""
    process = SglangProcess(model, log, max_total_tokens=max_total_tokens, sees=sees)
    engine = SglangEngine(EngineSettings(name="starting", url=process.url))
    try:
        try:
            await wait_ready(engine, START_TIMEOUT_S, alive=process.alive)
        except Exception:
            sys.stderr.write(process.tail())
            raise
        yield process
    finally:
        await engine.close()
        process.stop()


@pytest.fixture(scope="session")
async def sglang_process(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SglangProcess]:
    """The real server on the tiny model."""
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    async with running_sglang(tiny_model, log) as process:
        yield process


@pytest.fixture(scope="session")
def sglang_url(sglang_process: SglangProcess) -> str:
    """Where the real server on the tiny model listens, with LoRA enabled."""
    return sglang_process.url


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add what the real server wrote last to the report of a test that fails with it."""
    report = yield
    process = getattr(item, "funcargs", {}).get("sglang_process")
    if report.failed and isinstance(process, SglangProcess):
        report.sections.append(("sglang", process.tail()))
    return report
