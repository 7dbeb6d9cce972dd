"""When an environment is reused, when it is built again, and what is said when it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.errors import ConfigError, StackError
from gateway.local import environments
from gateway.local.environments import Environment, engine_environment, engine_python


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEXTSTATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NEXTSTATE_ENGINE_PYTHON", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of builds, recorded in place of being run; a venv is an empty interpreter."""
    run: list[list[str]] = []

    def record(command: list[str], what: str) -> None:
        run.append(command)
        if command[1:3] == ["-m", "venv"]:
            python = Path(command[3]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()

    monkeypatch.setattr(environments, "_run", record)
    return run


def make(tmp_path: Path, content: str = "one==1.0\n") -> Environment:
    lock = tmp_path / "lock.txt"
    lock.write_text(content)
    return Environment(tmp_path / "env", (lock,), tmp_path)


def test_builds_once_from_the_lock_alone(tmp_path: Path, steps: list[list[str]]) -> None:
    said: list[str] = []
    env = make(tmp_path)
    assert not env.is_current
    assert env.ensure(said.append) == tmp_path / "env" / "bin" / "python"
    assert env.is_current

    lock = str(tmp_path / "lock.txt")
    pip = [str(env.python), "-m", "pip", "install"]
    assert steps[1:] == [
        [*pip, "--no-deps", "-r", lock],
        [*pip, "-c", lock, "torch"],
        [*pip, "--no-deps", "--no-build-isolation", "-e", str(tmp_path)],
    ]
    env.ensure(said.append)
    assert len(steps) == 4
    assert len(said) == 2


def test_an_environment_without_torch_is_its_lock(tmp_path: Path, steps: list[list[str]]) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("one==1.0\n")
    env = Environment(tmp_path / "env", (lock,), torch=False)
    env.ensure(lambda _: None)
    assert [step[3:] for step in steps[1:]] == [["install", "--no-deps", "-r", str(lock)]]


def test_a_changed_lock_builds_from_nothing(tmp_path: Path, steps: list[list[str]]) -> None:
    make(tmp_path).ensure(print)
    (tmp_path / "env" / "old").touch()
    changed = make(tmp_path, "one==1.1\n")
    assert not changed.is_current
    changed.ensure(print)
    assert not (tmp_path / "env" / "old").exists()
    assert changed.is_current


def test_an_interrupted_build_is_begun_again(
    tmp_path: Path, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = environments._run

    def interrupted(command: list[str], what: str) -> None:
        recording(command, what)
        if "-r" in command:
            raise KeyboardInterrupt

    env = make(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(environments, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.ensure(print)
    assert env.python.exists()
    assert not env.is_current
    env.ensure(print)
    assert env.is_current


def test_a_python_without_ensurepip_borrows_its_own_pip_or_says_what_to_install(
    tmp_path: Path, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {"ensurepip"}
    found = environments.importlib.util.find_spec
    monkeypatch.setattr(
        environments.importlib.util,
        "find_spec",
        lambda name: None if name in missing else found(name),
    )
    env = make(tmp_path)
    env.ensure(print)
    assert steps[0][-1] == "--without-pip"
    assert steps[1][:5] == [sys.executable, "-m", "pip", "--python", str(env.python)]

    missing.add("pip")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(StackError, match=f"install python{version}-venv"):
        make(tmp_path, "two==2\n").ensure(print)


def test_a_step_that_fails_says_pips_own_reason(tmp_path: Path) -> None:
    script = "print('WARNING: slow'); print('ERROR: no matching distribution'); raise SystemExit(1)"
    with pytest.raises(StackError) as caught:
        environments._run([sys.executable, "-c", script], "installing")
    assert caught.value.message == "installing failed: ERROR: no matching distribution"


def test_a_missing_lock_is_one_clear_error(tmp_path: Path) -> None:
    env = Environment(tmp_path / "env", (tmp_path / "none.txt",))
    with pytest.raises(StackError, match=r"cannot read .*none.txt: No such file"):
        env.ensure(print)


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_ROOM", 1 << 60)
    with pytest.raises(StackError, match="GiB free; an environment needs"):
        make(tmp_path).ensure(print)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_engine_has_an_environment_a_device(
    device: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXTSTATE_DEVICE", device)
    env = engine_environment()
    name = {"cpu": "engine-cpu.txt", "cuda": "engine-gpu.txt"}[device]
    assert [lock.name for lock in env.locks] == [name]
    assert env.directory.parent == cache
    assert "sglang==0.5.23" in env.locks[0].read_text().splitlines()
    assert engine_python() == env.python


def test_the_engine_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXTSTATE_ENGINE_PYTHON", sys.executable)
    assert engine_python() == Path(sys.executable)
    monkeypatch.setenv("NEXTSTATE_ENGINE_PYTHON", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="NEXTSTATE_ENGINE_PYTHON names"):
        engine_python()


@pytest.mark.parametrize("lock", ["app.txt", "dev.txt", "engine-cpu.txt", "engine-gpu.txt"])
def test_every_lock_pins_each_package_once(lock: str) -> None:
    lines = (environments.checkout() / "locks" / lock).read_text().splitlines()
    names = [line.split("==")[0].lower().replace("_", "-") for line in lines]
    assert all(line.count("==") == 1 and " " not in line for line in lines)
    assert len(names) == len(set(names))
