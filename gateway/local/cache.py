"""Where what is costly to make is kept, shared between checkouts, and made once."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.errors import StackError


def cache_dir() -> Path:
    """`NEXTSTATE_CACHE`, else `nextstate` in the user's cache directory."""
    if named := os.environ.get("NEXTSTATE_CACHE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "nextstate"


@contextmanager
def exclusive(path: Path, *, wait_s: float, busy: str) -> Iterator[None]:
    """Hold the lock file `path`; the kernel frees it when the holder dies.

    Raises StackError with `busy` where it is still held after `wait_s` seconds.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a")
    except OSError as error:
        raise StackError(f"cannot use {path.parent}: {error}") from error
    with handle:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StackError(busy) from None
                time.sleep(0.1)
        yield


def made_once(target: Path, make: Callable[[Path], None], *, wait_s: float = 3600.0) -> Path:
    """`target`, made by `make(partial)` beside it and renamed, so that it exists only whole.

    One process makes it, others wait. Raises StackError where the disk does not allow it, and
    what `make` raises.
    """
    if target.exists():
        return target
    lock = target.with_name(target.name + ".lock")
    busy = f"another process has been making {target} for {wait_s / 60:.0f} min"
    with exclusive(lock, wait_s=wait_s, busy=busy):
        if target.exists():
            return target
        partial = target.with_name(target.name + ".partial")
        try:
            if partial.exists():
                shutil.rmtree(partial)
            make(partial)
            partial.rename(target)
        except OSError as error:
            raise StackError(f"cannot write {target}: {error}") from error
    return target
