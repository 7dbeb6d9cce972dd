"""What a stack says of itself on disk: one at a time in a directory, its state always whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from gateway.errors import StackError

Phase = Literal["starting", "ready", "stopping", "stopped", "failed"]


@dataclass(slots=True, kw_only=True)
class ProcessState:
    """One process: `starting`, `ready`, or `waiting` to be started again because of `reason`."""

    state: str
    pid: int | None = None
    restarts: int = 0
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class StackState:
    """The content of `stack.json`; times in seconds since the epoch."""

    pid: int
    phase: Phase
    started_at: float
    step: str = ""
    error: str | None = None
    url: str = ""
    engines: list[str] = field(default_factory=list)
    model: str = ""
    processes: dict[str, ProcessState] = field(default_factory=dict)


def write(home: Path, state: StackState) -> None:
    """Replace the state in one step. Raises StackError where the disk does not allow it."""
    target = home / "stack.json"
    aside = home / "stack.json.new"
    try:
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
        aside.replace(target)
    except OSError as error:
        raise StackError(f"cannot write {target}: {error.strerror}") from error


def read(home: Path) -> StackState | None:
    """The last state written, whether or not its stack still runs."""
    try:
        return msgspec.json.decode((home / "stack.json").read_bytes(), type=StackState)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise StackError(f"cannot read {home / 'stack.json'}: {error}") from error


def running(home: Path) -> StackState | None:
    """The state of the stack that runs in `home` now. What a crash left behind is not running."""
    lock = home / "lock"
    if not lock.exists():
        return None
    with lock.open("r") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return read(home)
    return None


@contextlib.contextmanager
def claimed(home: Path) -> Iterator[None]:
    """Be the only stack in `home`, which is made where it is missing; private, as it holds keys.

    Raises StackError where another one runs or the directory cannot be used.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StackError(f"cannot use {home}: {error.strerror}") from error
    try:
        _lock(handle, home)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, home: Path) -> None:
    """Take the lock; whoever only looks whether it is free holds it for an instant."""
    deadline = time.monotonic() + 1.0
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                found = read(home)
                who = f" (process {found.pid})" if found else ""
                raise StackError(f"a stack already runs in {home}{who}") from None
            time.sleep(0.05)
        else:
            return
