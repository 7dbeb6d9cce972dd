"""The terminal's side: what goes to which stream, and errors as one line."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config import SECTIONS
from gateway.errors import NextstateError, StackError
from gateway.local import launch, setup
from gateway.local.state import StackState

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call a command in an empty directory: its exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "NEXTSTATE_CONFIG", *(f"NEXTSTATE_{s.upper()}" for s in SECTIONS)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(setup, "setup", lambda settings, say: say("all is there"))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nextstate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def failing(error: Exception) -> Callable[..., object]:
    def call(*_: object, **__: object) -> object:
        raise error

    return call


def test_an_error_is_one_line_on_standard_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "up", failing(StackError("cannot listen on [1]:2: in use")))
    code, out, err = run("up")
    assert code == 1
    assert out == ""
    assert err.splitlines() == [
        "nextstate: all is there",
        "nextstate: cannot listen on [1]:2: in use",
    ]


def test_the_end_of_a_log_follows_the_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    error = StackError("engine ended (exit code 1)\n  | RuntimeError: no [bold]weights")
    monkeypatch.setattr(launch, "up", failing(error))
    assert run("up")[2].splitlines()[1:] == [
        "nextstate: engine ended (exit code 1)",
        "  | RuntimeError: no [bold]weights",
    ]


@pytest.mark.parametrize(
    "error", [NextstateError("broken"), OSError(errno.ENOSPC, "No space left on device")]
)
def test_no_error_of_ours_or_of_the_disk_is_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(launch, "down", failing(error))
    code, _, err = run("down")
    assert code == 1
    assert err == f"nextstate: {error}\n"


def test_a_wrong_setting_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXTSTATE_GATEWAY__PORT", "many")
    code, _, err = run("down")
    assert code == 1
    assert err.startswith("nextstate: wrong settings: gateway.port: ")
    assert len(err.splitlines()) == 1


def test_up_prints_what_a_shell_can_evaluate(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StackState(pid=1, phase="ready", started_at=0, url="http://127.0.0.1:8100")
    monkeypatch.setattr(launch, "up", lambda settings, say: state)
    (tmp_path / ".nextstate").mkdir()
    (tmp_path / ".nextstate" / "key").write_text("sk-ns-1\n")
    code, out, _ = run("up")
    assert code == 0
    assert out.splitlines()[:2] == [
        "export OPENAI_BASE_URL=http://127.0.0.1:8100/v1",
        "export OPENAI_API_KEY=sk-ns-1",
    ]
    shell = ["sh", "-c", f"{out}\necho $OPENAI_BASE_URL"]
    done = subprocess.run(shell, check=True, capture_output=True, text=True)
    assert done.stdout == "http://127.0.0.1:8100/v1\n"


@pytest.mark.parametrize(
    "arguments", [("keys", "list"), ("keys", "create", "ci"), ("migrate",), ("status",)]
)
def test_without_a_database_it_says_what_to_do(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("nextstate: no database: no stack runs in ")
    assert err.endswith("and DATABASE_URL is not set\n")


def test_taking_down_nothing_is_no_error(run: Run, tmp_path: Path) -> None:
    code, _, err = run("down")
    assert code == 0
    assert err == f"nextstate: no stack runs in {tmp_path}/.nextstate\n"


def test_the_demos_verdict_is_the_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import gateway.demo

    seen: dict[str, object] = {}

    def pretended(*, quick: bool, out: Path) -> int:
        seen.update(quick=quick, out=out)
        return 3

    monkeypatch.setattr(gateway.demo, "run", pretended)
    assert run("demo", "--quick")[0] == 3
    assert seen == {"quick": True, "out": Path("build/demo")}


def test_a_missing_log_is_answered_with_those_there_are(run: Run, tmp_path: Path) -> None:
    logs = tmp_path / ".nextstate" / "logs"
    logs.mkdir(parents=True)
    (logs / "judge.log").write_text("scored\n")
    assert run("logs", "judge")[:2] == (0, "scored\n")
    assert run("logs", "engine")[0] == 1


def test_a_serving_process_never_loads_torch() -> None:
    program = (
        "import sys, gateway.cli, gateway.app, gateway.local.stack, judge.worker;"
        "print(sorted({'torch', 'transformers', 'sglang', 'megatron'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "[]\n"
