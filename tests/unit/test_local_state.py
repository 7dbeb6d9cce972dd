"""One stack a directory; a crash leaves nothing that is believed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gateway.config import EngineSettings
from gateway.errors import StackError
from gateway.local import state
from gateway.local.access import with_engines
from gateway.local.config import LocalSettings
from gateway.local.state import ProcessState, StackState, claimed


def sample() -> StackState:
    return StackState(
        pid=os.getpid(),
        phase="ready",
        started_at=time.time(),
        url="http://127.0.0.1:8100",
        engines=["http://127.0.0.1:30000"],
        processes={"judge": ProcessState(state="waiting", restarts=2, reason="exit code 1")},
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert state.read(tmp_path) is None
    state.write(tmp_path, sample())
    found = state.read(tmp_path)
    assert found is not None
    assert found.processes["judge"].reason == "exit code 1"
    assert [path.name for path in tmp_path.iterdir()] == ["stack.json"]


def test_a_second_stack_is_refused_and_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with claimed(home):
        state.write(home, sample())
        assert state.running(home) == state.read(home)
        with pytest.raises(StackError, match=rf"already runs in .* \(process {os.getpid()}\)"):
            claimed(home).__enter__()
    with claimed(home):
        assert home.stat().st_mode & 0o777 == 0o700


def test_others_ask_the_engine_that_a_running_stack_chose(tmp_path: Path) -> None:
    settings = LocalSettings(local={"home": tmp_path}, judge={"llm": {}})
    with claimed(tmp_path):
        stack = sample()
        stack.engines = ["http://127.0.0.1:4321"]
        state.write(tmp_path, stack)
        llm = with_engines(settings).judging.llm
        assert llm is not None
        assert llm.base_url == "http://127.0.0.1:4321/v1"
        named = settings.model_copy(update={"engines": (EngineSettings(url="http://a:1"),)})
        assert with_engines(named) is named
    assert with_engines(settings) is settings


def test_the_state_of_a_stack_that_is_gone_is_not_running(tmp_path: Path) -> None:
    with claimed(tmp_path):
        state.write(tmp_path, sample())
    assert state.running(tmp_path) is None
    assert state.read(tmp_path) is not None


def test_a_damaged_state_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"pid": "many"}')
    with pytest.raises(StackError, match=r"cannot read .*stack.json"):
        state.read(tmp_path)


def test_an_unusable_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StackError, match=r"cannot use .*file/home"),
        claimed(tmp_path / "file/home"),
    ):
        pass
    with pytest.raises(StackError, match="cannot write"):
        state.write(tmp_path / "none", sample())
