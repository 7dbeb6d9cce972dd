"""Secrets that stand in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import Settings, load
from gateway.errors import ConfigError
from judge.config import JudgeSettings


def test_a_variable_names_the_file_of_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "url").write_text("postgresql://u:p@db/n\n")
    (tmp_path / "key").write_text("k")
    monkeypatch.setenv("NEXTSTATE_DATABASE__URL_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("NEXTSTATE_JUDGE__LLM", '{"base_url": "http://h/v1", "model": "m"}')
    monkeypatch.setenv("NEXTSTATE_JUDGE__LLM__API_KEY_FILE", str(tmp_path / "key"))
    settings = load(JudgeSettings)
    assert settings.database_url == "postgresql://u:p@db/n"
    assert settings.judge.llm is not None
    assert settings.judge.llm.api_key is not None
    assert settings.judge.llm.api_key.get_secret_value() == "k"


def test_a_file_may_hold_a_whole_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "engines").write_text('[{"name": "a", "api_key": "secret"}]')
    monkeypatch.setenv("NEXTSTATE_ENGINES_FILE", str(tmp_path / "engines"))
    [engine] = load(Settings).engines
    assert engine.api_key is not None
    assert engine.api_key.get_secret_value() == "secret"


@pytest.mark.parametrize(
    ("content", "what"), [(None, "No such file"), ("\n", "is empty"), (b"\xff\xfe\xff", "no text")]
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes | None, what: str
):
    path = tmp_path / "url"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.setenv("NEXTSTATE_DATABASE__URL_FILE", str(path))
    with pytest.raises(ConfigError, match=f"NEXTSTATE_DATABASE__URL_FILE names .*{what}"):
        load(Settings)


def test_a_value_given_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "url").write_text("postgresql://u:p@db/n")
    monkeypatch.setenv("NEXTSTATE_DATABASE__URL", "postgresql://other/n")
    monkeypatch.setenv("NEXTSTATE_DATABASE__URL_FILE", str(tmp_path / "url"))
    with pytest.raises(ConfigError, match="both set"):
        load(Settings)
