"""A log in files: moved aside by size and by age, and never shared by two processes."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from gateway.config import LogFileSettings, LogSettings, Settings, load
from gateway.errors import ConfigError
from gateway.telemetry import configure_logging, get_logger
from gateway.telemetry.files import RotatingFile


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.glob("[!.]*")}


def test_a_file_is_moved_aside_before_it_grows_too_large(tmp_path: Path):
    file = RotatingFile(LogFileSettings(directory=tmp_path, max_bytes=10, keep=2), "judge")
    for line in ("1234\n", "5678\n", "9\n", "0123456789012\n", "a\n"):
        file.write(line)
    file.close()
    assert contents(tmp_path) == {
        "judge.log": "a\n",
        "judge.log.1": "0123456789012\n",
        "judge.log.2": "9\n",
    }


def test_none_is_kept_where_none_is_wanted(tmp_path: Path):
    file = RotatingFile(LogFileSettings(directory=tmp_path, max_bytes=3, keep=0), "judge")
    file.write("12\n")
    file.write("34\n")
    file.close()
    assert contents(tmp_path) == {"judge.log": "34\n"}


def test_age_is_counted_across_processes(tmp_path: Path):
    clock = Clock()
    settings = LogFileSettings(directory=tmp_path, max_age_s=60)
    first = RotatingFile(settings, "gateway", now=clock)
    first.write("one\n")
    clock.at += 59
    first.close()
    second = RotatingFile(settings, "gateway", now=clock)
    second.write("two\n")
    assert contents(tmp_path) == {"gateway.log": "one\ntwo\n"}
    clock.at += 1
    second.write("three\n")
    second.close()
    assert contents(tmp_path) == {"gateway.log": "three\n", "gateway.log.1": "one\ntwo\n"}


def test_a_name_in_use_is_left_alone_and_used_again_when_free(tmp_path: Path):
    settings = LogFileSettings(directory=tmp_path)
    first, second = RotatingFile(settings, "gateway"), RotatingFile(settings, "gateway")
    assert (first.path.name, second.path.name) == ("gateway.log", "gateway-2.log")
    first.close()
    third = RotatingFile(settings, "gateway")
    assert third.path.name == "gateway.log"
    second.close()
    third.close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"log\.file\.directory"):
        RotatingFile(LogFileSettings(directory=tmp_path / "file" / "logs"), "gateway")


def test_the_file_has_the_events_of_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEXTSTATE_LOG__FILE__DIRECTORY", str(tmp_path / "logs"))
    settings = load(Settings).log
    assert settings == LogSettings(file=LogFileSettings(directory=tmp_path / "logs"))
    out = io.StringIO()
    configure_logging(settings, "judge", out)
    get_logger("m").info("scored", score=1)
    for handler in logging.getLogger().handlers:
        handler.close()
    assert (tmp_path / "logs" / "judge.log").read_text() == out.getvalue()
    assert json.loads(out.getvalue())["event"] == "scored"
