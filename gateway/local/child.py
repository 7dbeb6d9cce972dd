"""One process of the stack: started in a session of its own, waited for, ended as a group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.errors import NextstateError, StackError
from gateway.local.tether import tethered

_POLL_S = 0.05

#: A log is moved aside at this size, in bytes, and one older part is kept.
LOG_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What to run.

    `ready` returns once the process serves and is bounded by `ready_within_s`. `prepare` runs
    before each start, in a thread. `without` says which inherited variables it is not to see.
    `tether` is off where the command ties itself to its parent.
    """

    name: str
    command: Callable[[], Sequence[str]]
    ready: Callable[[], Awaitable[None]]
    ready_within_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    without: Callable[[str], bool] = lambda _: False
    prepare: Callable[[], None] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    grace_s: float = 15.0
    tether: bool = True


async def polled(probe: Callable[[], bool], every_s: float = 0.1) -> None:
    """Return once `probe`, which may block for a moment, says yes."""
    while not await asyncio.to_thread(probe):  # noqa: ASYNC110 - it asks another process
        await asyncio.sleep(every_s)


async def exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process to end; negative for a signal."""
    while (code := process.poll()) is None:  # noqa: ASYNC110 - not every kernel has an event
        await asyncio.sleep(_POLL_S)
    return code


class Child:
    """At most one running process of a specification; restarts are the supervisor's business."""

    def __init__(self, spec: ChildSpec, *, log: Path, mark: Mapping[str, str]) -> None:
        self.spec = spec
        self.log = log
        self._mark = mark
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Run it and wait until it is ready.

        Raises StackError, with the last lines of its log, where it ends or the time is up; it is
        not running then.
        """
        try:
            if self.spec.prepare is not None:
                await asyncio.to_thread(self.spec.prepare)
            self._spawn()
            await self._until_ready()
        except BaseException:
            self.kill()
            raise

    async def ended(self) -> str:
        """Wait for the process to end; how it did, in words."""
        assert self._process is not None
        code = await exit_code(self._process)
        # What it started goes with it.
        self._signal(signal.SIGKILL)
        self._process = None
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def stop(self, hurry: asyncio.Event) -> None:
        """Ask, wait for the grace unless hurried, then kill the whole group."""
        if self._process is None:
            return
        self._signal(self.spec.stop_signal)
        waits: list[asyncio.Future[object]] = [
            asyncio.ensure_future(exit_code(self._process)),
            asyncio.ensure_future(hurry.wait()),
        ]
        try:
            await asyncio.wait(
                waits, timeout=self.spec.grace_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in waits:
                task.cancel()
            self.kill()

    def kill(self) -> None:
        """End the group at once."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def trim_log(self) -> None:
        """Move a long log aside; the process goes on writing to the same file from its start."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > LOG_LIMIT:
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
                os.truncate(self.log, 0)

    def last_lines(self, count: int = 8) -> str:
        """The end of its log, indented for an error message."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
            lines = file.read().decode(errors="replace").splitlines()
        told = [line for line in lines if line.strip()][-count:]
        return "".join(f"\n  | {line[:300]}" for line in told)

    def _spawn(self) -> None:
        command = list(self.spec.command())
        inherited = {k: v for k, v in os.environ.items() if not self.spec.without(k)}
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    tethered(command, signal="TERM") if self.spec.tether else command,
                    env={**inherited, **self.spec.environment, **self._mark},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise StackError(f"{self.spec.name} cannot be started: {error}") from error

    async def _until_ready(self) -> None:
        name = self.spec.name
        ready = asyncio.ensure_future(self.spec.ready())
        ended = asyncio.ensure_future(self.ended())
        try:
            await asyncio.wait(
                (ready, ended),
                timeout=self.spec.ready_within_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if ended.done():
                raise StackError(
                    f"{name} ended while it was starting ({ended.result()}){self.last_lines()}"
                )
            if not ready.done():
                limit = f"{self.spec.ready_within_s:.0f} s"
                raise StackError(f"{name} was not ready after {limit}{self.last_lines()}")
            try:
                ready.result()
            except NextstateError as error:
                raise StackError(f"{name}: {error.message}{self.last_lines()}") from error
        finally:
            ready.cancel()
            ended.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)

    def _signal(self, sign: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, sign)
