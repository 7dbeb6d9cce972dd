"""Named processes kept running: started in order, restarted when they die, stopped as a group."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import NextstateError, StackError
from gateway.local.child import Child, ChildSpec, exit_code
from gateway.local.leftovers import end_all, mark
from gateway.local.state import ProcessState
from gateway.telemetry import get_logger

_log = get_logger(__name__)

_TRIM_EVERY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Seconds between restarts: `first`, doubled up to `most`, back after `steady_s` of work."""

    first_s: float = 0.5
    most_s: float = 30.0
    steady_s: float = 60.0


class Supervisor:
    """Runs children of one stack directory until `stop`.

    A guard process ends all of them where this one is killed in a way it cannot catch. Use from
    the main thread: children are tied to the thread that starts them. `changed` is called when a
    process changes state.
    """

    def __init__(
        self,
        home: Path,
        *,
        backoff: Backoff | None = None,
        guard_grace_s: float = 10.0,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.states: dict[str, ProcessState] = {}
        self.hurry = asyncio.Event()
        self._home = home.absolute()
        self._logs = self._home / "logs"
        self._run = secrets.token_hex(8)
        self._backoff = backoff or Backoff()
        self._guard_grace_s = guard_grace_s
        self._changed = changed
        self._children: list[Child] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._guard: subprocess.Popen[bytes] | None = None

    async def start(self, spec: ChildSpec) -> None:
        """Start one and keep it running.

        Raises StackError where its first start fails; later ones are tried again for ever.
        """
        if self._guard is None:
            self._open()
        log = self._logs / f"{spec.name}.log"
        child = Child(spec, log=log, mark=mark(self._home, self._run))
        self._children.append(child)
        state = self.states[spec.name] = ProcessState(state="starting")
        child.trim_log()
        await self._bring_up(child, state)
        self._tasks.append(asyncio.create_task(self._keep(child, state), name=spec.name))

    async def stop(self) -> None:
        """Stop all in the reverse order of their start; `hurry` cuts every grace short."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        while self._children:
            child = self._children.pop()
            await child.stop(self.hurry)
            self.states.pop(child.spec.name, None)
        if self._guard is not None:
            guard, self._guard = self._guard, None
            assert guard.stdin is not None
            guard.stdin.close()
            await exit_code(guard)

    def _open(self) -> None:
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StackError(f"cannot write {self._logs}: {error.strerror}") from error
        end_all(self._home)
        arguments = [str(self._home), self._run, str(self._guard_grace_s)]
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "gateway.local.leftovers", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._tasks.append(asyncio.create_task(self._trim_logs(), name="logs"))

    async def _bring_up(self, child: Child, state: ProcessState) -> None:
        state.state = "starting"
        self._changed()
        started = time.monotonic()
        await child.start()
        state.state, state.pid = "ready", child.pid
        self._changed()
        took = round(time.monotonic() - started, 2)
        _log.info("process_ready", process=child.spec.name, pid=child.pid, seconds=took)

    async def _keep(self, child: Child, state: ProcessState) -> None:
        failures = 0
        while True:
            if state.state == "ready":
                since = time.monotonic()
                state.reason = await child.ended()
                if time.monotonic() - since > self._backoff.steady_s:
                    failures = 0
            delay = min(self._backoff.first_s * 2**failures, self._backoff.most_s)
            failures += 1
            state.state, state.pid, state.restarts = "waiting", None, state.restarts + 1
            self._changed()
            _log.warning(
                "process_died",
                process=child.spec.name,
                reason=state.reason,
                restarts=state.restarts,
                again_in_s=delay,
            )
            await asyncio.sleep(delay)
            try:
                await self._bring_up(child, state)
            except NextstateError as error:
                state.reason = error.message

    async def _trim_logs(self) -> None:
        while True:
            await asyncio.sleep(_TRIM_EVERY_S)
            for child in self._children:
                child.trim_log()
