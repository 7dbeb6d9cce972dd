"""The settings file that the stack writes for its processes says the same as what it was given."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr

from gateway.config import SECTIONS, DatabaseSettings, EngineSettings, load
from gateway.local.config import LocalConfig, LocalSettings, plain


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for section in SECTIONS:
        monkeypatch.delenv(f"NEXTSTATE_{section.upper()}", raising=False)
    monkeypatch.delenv("NEXTSTATE_CONFIG", raising=False)


def test_defaults_need_no_line() -> None:
    assert plain(LocalSettings()) == {}


def test_a_file_written_and_read_gives_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = LocalSettings(
        engines=(EngineSettings(name="a", url="http://127.0.0.1:1", api_key=SecretStr("s3")),),
        database=DatabaseSettings(url=SecretStr("postgresql://u:p@/db?host=/run"), spool=Path("s")),
        local=LocalConfig(home=Path("elsewhere"), judge=False),
    )
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(plain(given)))
    monkeypatch.setenv("NEXTSTATE_CONFIG", str(file))
    assert load(LocalSettings) == given
    assert "postgresql://u:p@/db" in file.read_text()


def test_an_engine_runs_here_unless_engines_are_configured() -> None:
    assert LocalSettings().own_engine
    assert not LocalSettings(engines=(EngineSettings(url="http://gpu:30000"),)).own_engine
