"""The processes of a measurement: started pinned, asked for CPU time and memory, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from gateway.local.tether import tethered

ROOT = Path(__file__).resolve().parent.parent
_GRACE_S = 15.0


class NotReady(RuntimeError):
    """A process ended or did not answer in time."""


def cores() -> tuple[set[int], set[int]]:
    """The core of the system that is measured, and those of everything else, of this process's.

    They are the same where there is only one.
    """
    first, *rest = sorted(os.sched_getaffinity(0))
    return {first}, set(rest) or {first}


def family(pid: int) -> list[int]:
    """A process and all below it that are there now."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def pin(pid: int, on: set[int]) -> None:
    """Keep a process and its children, also those to come, on some cores."""
    for member in family(pid):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(member, on)


def cpu_us(pid: int) -> float:
    """CPU microseconds that a process and its children have used so far, ended threads included."""
    used = 0.0
    for member in family(pid):
        with contextlib.suppress(OSError):
            # The CPU clock of another process, as clock_getcpuclockid(3) numbers it.
            used += time.clock_gettime((~member << 3) | 2) * 1e6
    return used


def rss_mb(pid: int) -> float:
    """Resident memory of a process and its children."""
    held = 0
    for member in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            held += psutil.Process(member).memory_info().rss
    return held / 1e6


class Process:
    """One server, its output in a log file. `stop` is safe to call twice."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        on: set[int],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log = name, log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                tethered(command, signal="KILL"),
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Its threads are not there yet and inherit this.
        pin(self.pid, on)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def listening(self, port: int, within_s: float = 60.0) -> None:
        """Wait until it accepts connections. Raises NotReady."""
        deadline = time.monotonic() + within_s
        while True:
            self._check(deadline, within_s)
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.1)

    async def printed(self, within_s: float = 10.0) -> str:
        """The first line that it prints. Raises NotReady."""
        deadline = time.monotonic() + within_s
        while "\n" not in (text := self.log.read_text(errors="replace")):
            self._check(deadline, within_s)
            await asyncio.sleep(0.02)
        return text.split("\n", 1)[0]

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to the whole group."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _check(self, deadline: float, within_s: float) -> None:
        code = self._process.poll()
        if code is not None:
            raise NotReady(f"{self.name} ended with code {code}; see {self.log}")
        if time.monotonic() > deadline:
            raise NotReady(f"{self.name} was not ready after {within_s:.0f} s; see {self.log}")


def python(*arguments: str) -> list[str]:
    """A command of this interpreter."""
    return [sys.executable, *arguments]
