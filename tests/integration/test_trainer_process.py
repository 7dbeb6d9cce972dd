"""`python -m trainer` as an operator meets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures_engine import free_port


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    root = str(Path(__file__).parents[2])
    return {**kept, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "NEXTSTATE_LOG__FORMAT": "json"}


def command(tmp_path: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trainer"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_missing_setting_is_one_line(tmp_path: Path, environment: dict[str, str]) -> None:
    process = command(tmp_path, environment)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors == "no database: set DATABASE_URL or database.url\n"


def test_it_waits_for_postgres_and_ends_when_told(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    url = f"postgresql://user:hidden@127.0.0.1:{free_port()}/none"
    process = command(tmp_path, {**environment, "DATABASE_URL": url})
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert '"store_unavailable"' in line
        assert "hidden" not in line
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert errors == ""
