"""The two Python environments, built from pinned locks and reused until a lock changes.

The engine's pins disagree with the application's, so it has an environment of its own, shared
between checkouts. This module needs nothing but the standard library: `python3 -m
gateway.local.environments .venv` builds the application's before anything is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.device import device
from gateway.errors import ConfigError, NextstateError, StackError
from gateway.local.cache import cache_dir, exclusive
from gateway.local.tether import tethered

#: Counted up when the way of installing changes, so that older environments are rebuilt.
_RECIPE = "1"

#: Free space that a build needs before it starts, in bytes.
_ROOM = 5 << 30

_BUILD_LIMIT_S = 3600

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment: where it is and what it holds.

    `project` is a checkout to install in editable form. `torch` says that the locks hold torch,
    whose own libraries differ between builds and are added after them.
    """

    directory: Path
    locks: tuple[Path, ...]
    project: Path | None = None
    torch: bool = True

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def digest(self) -> str:
        """SHA-256 of all that the environment depends on."""
        version = ".".join(map(str, sys.version_info[:2]))
        found = hashlib.sha256(f"{_RECIPE}\n{version}\n{self.project}\n".encode())
        for lock in self.locks:
            try:
                found.update(lock.read_bytes())
            except OSError as error:
                raise StackError(f"cannot read {lock}: {error.strerror}") from error
        return found.hexdigest()

    @property
    def is_current(self) -> bool:
        """Whether it was built to the end from these locks."""
        wanted, stamp = self.digest, self.directory / "complete"
        return stamp.is_file() and stamp.read_text().strip() == wanted and self.python.exists()

    def ensure(self, say: Say) -> Path:
        """The interpreter, after building whatever is not current; `say` hears of the steps.

        Raises StackError. An interrupted build leaves no stamp and is begun again.
        """
        if self.is_current:
            return self.python
        name = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        lock = cache_dir() / "locks" / f"{name}.lock"
        busy = f"another process has been building {self.directory} for over an hour"
        with exclusive(lock, wait_s=_BUILD_LIMIT_S, busy=busy):
            if not self.is_current:
                try:
                    self._build(say)
                except OSError as error:
                    raise StackError(f"cannot build {self.directory}: {error}") from error
        return self.python

    def _build(self, say: Say) -> None:
        digest = self.digest
        if self.directory.exists():
            shutil.rmtree(self.directory)
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.directory.parent).free
        if free < _ROOM:
            raise StackError(
                f"{self.directory.parent} has {free / 2**30:.1f} GiB free; "
                f"an environment needs {_ROOM / 2**30:.0f}"
            )
        say(f"building {self.directory} (minutes the first time, then reused)")
        pip = self._create()
        pinned = [flag for lock in self.locks for flag in ("-r", str(lock))]
        _run([*pip, "install", "--no-deps", *pinned], "installing the locked packages")
        if self.torch:
            # A torch built for CUDA names its own libraries exactly; one for the CPU names none.
            bounds = [flag for lock in self.locks for flag in ("-c", str(lock))]
            _run([*pip, "install", *bounds, "torch"], "completing torch")
        if self.project is not None:
            editable = ["--no-deps", "--no-build-isolation", "-e", str(self.project)]
            _run([*pip, "install", *editable], "installing the project")
        (self.directory / "complete").write_text(digest + "\n")
        say(f"{self.directory} is ready")

    def _create(self) -> list[str]:
        """Make the bare environment; the pip command that installs into it."""
        venv = [sys.executable, "-m", "venv", str(self.directory)]
        if importlib.util.find_spec("ensurepip") is not None:
            _run(venv, "creating the environment")
            return [str(self.python), "-m", "pip"]
        if importlib.util.find_spec("pip") is None:
            version = ".".join(map(str, sys.version_info[:2]))
            raise StackError(
                f"this Python has neither ensurepip nor pip; install python{version}-venv "
                f"(Debian, Ubuntu: apt install python{version}-venv)"
            )
        _run([*venv, "--without-pip"], "creating the environment")
        return [sys.executable, "-m", "pip", "--python", str(self.python)]


def checkout() -> Path:
    """The directory that holds `locks`; the project runs from a checkout."""
    return Path(__file__).resolve().parents[2]


def app_environment(directory: Path) -> Environment:
    """The application's, development tools included."""
    locks = checkout() / "locks"
    return Environment(directory.absolute(), (locks / "app.txt", locks / "dev.txt"), checkout())


def engine_environment() -> Environment:
    """The engine's for this machine's device, in the cache under its lock's digest."""
    lock = checkout() / "locks" / ("engine-gpu.txt" if device() == "cuda" else "engine-cpu.txt")
    digest = Environment(Path(), (lock,)).digest
    return Environment(cache_dir() / f"engine-{digest[:16]}", (lock,))


def engine_python() -> Path:
    """The engine's interpreter: `NEXTSTATE_ENGINE_PYTHON`, else the one in the cache.

    It may not exist yet. Raises ConfigError where the variable names no file.
    """
    if named := os.environ.get("NEXTSTATE_ENGINE_PYTHON"):
        path = Path(named)
        if not path.is_file():
            raise ConfigError(f"NEXTSTATE_ENGINE_PYTHON names {path}, which is not a file")
        return path
    return engine_environment().python


def ensure_engine(say: Say) -> Path:
    """The engine's interpreter, its environment built where it is not there. Raises StackError."""
    if os.environ.get("NEXTSTATE_ENGINE_PYTHON"):
        return engine_python()
    return engine_environment().ensure(say)


def _run(command: list[str], what: str) -> None:
    """Run one step of a build; what it said goes into the error."""
    environ = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")
    }
    environ |= {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_NO_INPUT": "1",
        "PIP_QUIET": "1",
    }
    try:
        done = subprocess.run(
            tethered(command, signal="KILL"),
            env=environ,
            check=False,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_BUILD_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise StackError(f"{what} took over {_BUILD_LIMIT_S // 60} min") from None
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        grave = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
        raise StackError(f"{what} failed: {' '.join(grave[-3:])}")


def main() -> int:
    """Build the application's environment in the directory that is the only argument."""
    try:
        app_environment(Path(sys.argv[1])).ensure(lambda line: _tell(f"nextstate: {line}"))
    except NextstateError as error:
        _tell(f"nextstate: {error.message}")
        return 1
    except KeyboardInterrupt:
        _tell("nextstate: interrupted; the next run begins the environment again")
        return 130
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
