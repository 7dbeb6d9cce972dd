"""Running a stack from a terminal: in front, in the background, and taking it down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from gateway.errors import StackError
from gateway.local import state
from gateway.local.config import LocalSettings
from gateway.local.environments import Say
from gateway.local.leftovers import end_all
from gateway.local.stack import Stack
from gateway.local.state import StackState

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Longer than all graces of a stack together.
_STOP_LIMIT_S = 150.0


async def run(
    settings: LocalSettings, body: Callable[[Stack], Awaitable[T]], *, say: Say
) -> T | None:
    """Start a stack, run `body` on it, stop it; None where a signal came first.

    A first signal stops everything in order, at whatever point it comes; a second one at once.
    Raises StackError or ConfigError where the stack cannot start, and what `body` raises.
    """
    stack = Stack(settings, say=say)
    asked = asyncio.Event()

    def stop() -> None:
        if asked.is_set():
            stack.hurry()
        asked.set()

    async def work() -> T:
        async with stack:
            return await body(stack)

    loop = asyncio.get_running_loop()
    for sign in _SIGNALS:
        loop.add_signal_handler(sign, stop)
    working = asyncio.ensure_future(work())
    waiting = asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
            return None
        return working.result()
    finally:
        waiting.cancel()
        for sign in _SIGNALS:
            loop.remove_signal_handler(sign)


def up(settings: LocalSettings, *, say: Say) -> StackState:
    """Start a stack that outlives this process, or find the one that runs; its state once ready.

    Raises StackError where it cannot start. Interrupted, it takes down what it has started.
    """
    home = settings.home
    if (found := state.running(home)) is not None:
        return _await_ready(home, found.pid, None, say)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / "logs").mkdir(exist_ok=True)
        with (home / "logs" / "stack.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "gateway", "up", "--foreground"],
                stdin=subprocess.DEVNULL,
                # It prints the key.
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        raise StackError(f"cannot start in {home}: {error.strerror}") from error
    try:
        return _await_ready(home, child.pid, child, say)
    except BaseException:
        child.terminate()
        try:
            child.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def down(settings: LocalSettings, *, say: Say) -> bool:
    """Stop the stack; whether one was running. Raises StackError where it does not stop."""
    home = settings.home
    found = state.running(home)
    if found is None:
        # One that was killed leaves nothing behind either, in a moment.
        return bool(end_all(home))
    say("stopping")
    with contextlib.suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGTERM)
    if not _gone(home, found.pid, _STOP_LIMIT_S):
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGKILL)
        end_all(home)
        if not _gone(home, found.pid, 10.0):
            raise StackError(f"the stack in {home} (process {found.pid}) does not stop")
    return True


def _gone(home: Path, pid: int, within_s: float) -> bool:
    """Whether the stack has let go of its directory and its process has ended."""
    deadline = time.monotonic() + within_s
    while state.running(home) is not None or _alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent's notice does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _await_ready(
    home: Path, pid: int, child: subprocess.Popen[bytes] | None, say: Say
) -> StackState:
    step = ""
    while True:
        ended = child is not None and child.poll() is not None
        found = state.read(home)
        if found is not None and found.pid == pid:
            if found.phase == "ready":
                return found
            if found.phase == "failed":
                raise StackError(found.error or "the stack failed to start")
            if found.step != step:
                step = found.step
                say(step)
        if ended or (child is None and state.running(home) is None):
            raise StackError(f"the stack ended while it was starting; see {home}/logs/stack.log")
        time.sleep(0.1)
