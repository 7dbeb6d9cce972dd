from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from gateway.demo import command
from gateway.demo.claims import Claim
from gateway.demo.loop import QUICK
from gateway.demo.measure import Score
from gateway.demo.report import Report
from gateway.demo.users import Tally
from gateway.errors import StackError
from gateway.local import launch, state

NOTHING = Score(turns=0, mean=None, ci95=None, tokens=None)


def report(*, held: bool) -> Report:
    claims = [
        Claim(name="versions", held=True, detail="8 published"),
        Claim(name="gain", held=held, detail="+0.10"),
    ]
    return Report(
        rows=[], control=NOTHING, gain=None, claims=claims, tally=Tally(requests=9), wall_s=61.0
    )


def outcome(monkeypatch: pytest.MonkeyPatch, out: Path, found: Report | None) -> tuple[int, str]:
    """The exit status and what was printed, the stack's run replaced by its result."""

    async def run(*_: object, **__: object) -> Report | None:
        return found

    monkeypatch.setattr(launch, "run", run)
    monkeypatch.setattr(command, "configure_logging", lambda *_: None)
    text = io.StringIO()
    status = command.demo(quick=True, out=out, console=Console(file=text, width=100))
    return status, text.getvalue()


def test_a_run_that_holds_exits_with_0_and_leaves_its_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, text = outcome(monkeypatch, tmp_path, report(held=True))
    assert status == 0
    assert "61 s, 9 requests" in text
    assert json.loads((tmp_path / "report.json").read_text())["wall_s"] == 61.0


def test_a_claim_that_failed_is_named_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, text = outcome(monkeypatch, tmp_path, report(held=False))
    assert status == 1
    assert "Not shown by this run: gain." in text
    assert (tmp_path / "report.json").is_file()


def test_an_interrupted_run_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, text = outcome(monkeypatch, tmp_path, None)
    assert status == 130
    assert "nothing was measured" in text
    assert not (tmp_path / "report.json").exists()


def test_each_run_starts_in_an_empty_directory_on_a_free_port(tmp_path: Path) -> None:
    home = tmp_path / "stack"
    (home / "postgres").mkdir(parents=True)
    command._empty(home)
    assert not home.exists()
    settings = command._settings(home, QUICK)
    assert settings.home == home
    assert settings.gateway.port > 0
    assert settings.freshness.batch == QUICK.batch


def test_a_demo_that_runs_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "stack"
    with state.claimed(home):
        state.write(home, state.StackState(pid=1, phase="ready", started_at=0.0))
        with pytest.raises(StackError, match="already runs"):
            command._empty(home)
    assert (home / "stack.json").is_file()
