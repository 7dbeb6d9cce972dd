"""`nextstate config`: what is in force, where it comes from, and what is wrong with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gateway.cli.commands import app


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name == "DATABASE_URL" or name.upper().startswith("NEXTSTATE_"):
            monkeypatch.delenv(name)


def called(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["config", *arguments])


def shown(*arguments: str) -> dict[str, tuple[Any, str]]:
    result = called("show", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return {one["name"]: (one["value"], one["source"]) for one in json.loads(result.stdout)}


def test_each_value_is_told_with_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nextstate.yaml").write_text(
        "gateway: {port: 9000, host: 0.0.0.0}\n"
        "session_awareness: {session_timeout: 60}\n"
        "engines: [{name: a, api_key: k-one}, {name: b, url: 'http://u:pass@b:1'}]\n"
    )
    (tmp_path / "url").write_text("postgresql://u:p@h/n")
    monkeypatch.setenv("NEXTSTATE_GATEWAY__PORT", "9001")
    monkeypatch.setenv("NEXTSTATE_LOG", '{"level": "debug"}')
    monkeypatch.setenv("NEXTSTATE_DATABASE__URL_FILE", str(tmp_path / "url"))
    found = shown()
    assert found["gateway.port"] == (9001, "NEXTSTATE_GATEWAY__PORT")
    assert found["gateway.host"] == ("0.0.0.0", "nextstate.yaml")
    assert found["gateway.replicas"] == (1, "default")
    assert found["session_awareness.session_timeout_s"] == (60.0, "nextstate.yaml")
    assert found["log.level"] == ("debug", "NEXTSTATE_LOG")
    assert found["log.format"] == ("auto", "default")
    assert found["database.url"] == ("********", "NEXTSTATE_DATABASE__URL_FILE")
    assert found["engines.0.api_key"] == ("********", "nextstate.yaml")
    assert found["engines.1.api_key"] == (None, "default")
    assert found["engines.1.url"] == ("http://u:********@b:1", "nextstate.yaml")
    changed = shown("--changed")
    assert changed == {name: one for name, one in found.items() if one[1] != "default"}
    assert "gateway.replicas" not in changed


def test_no_secret_is_shown_in_either_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:s3cret-a@h/n")
    monkeypatch.setenv(
        "NEXTSTATE_JUDGE__LLM",
        json.dumps(
            {
                "base_url": "http://u:s3cret-b@h/v1",
                "model": "m",
                "api_key": "s3cret-c",
                "headers": {"Authorization": "Bearer s3cret-d", "X-Api-Key": "s3cret-e"},
                "extra_body": {"nested": [{"token": "s3cret-f"}]},
            }
        ),
    )
    for arguments in ((), ("--json",), ("--changed",)):
        result = called("show", *arguments)
        assert result.exit_code == 0
        assert "s3cret" not in result.output
        assert "judge.llm.model" in result.output
    assert shown()["database.url"] == ("********", "DATABASE_URL")
    assert shown()["judge.llm.max_tokens"] == (1024, "default")


def test_every_wrong_setting_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nextstate.yaml").write_text(
        "gatway: {port: 1}\nlog: {level: loud}\nfreshness: {batch: 0, sizes: 3}\n"
    )
    monkeypatch.setenv("NEXTSTATE_GATEWAY__PORT", "many")
    monkeypatch.setenv("NEXTSTATE_TRAINR__BATCH", "3")
    result = called("check", "--json")
    assert result.exit_code == 1
    assert {one["setting"] for one in json.loads(result.stdout)} == {
        "NEXTSTATE_TRAINR__BATCH",
        "gatway",
        "gateway.port",
        "log.level",
        "freshness.batch",
        "freshness.sizes",
    }
    assert called("check").exit_code == 1


@pytest.mark.parametrize(
    ("variable", "value", "setting"),
    [
        ("NEXTSTATE_DATABASE__URL", "mysql://h/n", "database.url"),
        ("NEXTSTATE_MODEL__PATH", "/nowhere", "model.path"),
        ("NEXTSTATE_SESSION_AWARENESS__AUXILIARY_PATTERNS", '["("]', "session_awareness"),
        ("NEXTSTATE_JUDGE__LINE", '["llm"]', "judge.line"),
        ("NEXTSTATE_ENGINES", "not json", "environment"),
        ("NEXTSTATE_DATABASE__URL_FILE", "/nowhere", "environment"),
        ("NEXTSTATE_CONFIG", "/nowhere.yaml", "settings file"),
    ],
)
def test_what_is_wrong_only_with_the_rest_is_named_too(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, setting: str
) -> None:
    monkeypatch.setenv(variable, value)
    result = called("check", "--json")
    assert result.exit_code == 1
    assert [one["setting"] for one in json.loads(result.stdout)] == [setting]


def test_a_settings_file_that_is_no_table_is_told(tmp_path: Path) -> None:
    (tmp_path / "nextstate.yaml").write_text("- gateway\n")
    [problem] = json.loads(called("check", "--json").stdout)
    assert problem == {
        "setting": "settings file",
        "problem": "nextstate.yaml is not a table of sections",
    }


def test_right_settings_end_with_zero() -> None:
    result = called("check")
    assert (result.exit_code, result.stdout) == (0, "the settings are right\n")
    assert json.loads(called("check", "--json").stdout) == []
