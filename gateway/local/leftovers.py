"""Finding and ending every process of a stack, however it was started or orphaned.

Each child of a stack carries the stack's directory and the name of its run in `NEXTSTATE_STACK`,
and so do all that it starts. `python -m gateway.local.leftovers HOME RUN GRACE` waits for the end
of its standard input, which its parent holds open, and then ends what is left of that run: the
parent may be killed in any way, and another run may have begun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "NEXTSTATE_STACK"


def mark(home: Path, run: str) -> dict[str, str]:
    """The variable that a child of this run is to carry."""
    return {MARK: f"{home}#{run}"}


def left_behind(home: Path, run: str = "") -> list[int]:
    """Processes of the stack, or of one run of it, this one apart; zombies do not count."""
    wanted = os.fsencode(f"{MARK}={home}#{run}")
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # A process may end, or belong to someone else, while it is looked at.
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if any(item.startswith(wanted) for item in variables):
                found.append(int(entry.name))
    return found


def end_all(home: Path, run: str = "", *, grace_s: float = 10.0) -> list[int]:
    """Ask all of them to stop, kill those that do not within `grace_s`; who was there."""
    first = left_behind(home, run)
    _send(first, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (remaining := left_behind(home, run)) and time.monotonic() < deadline:
        time.sleep(0.05)
    while remaining:
        _send(remaining, signal.SIGKILL)
        time.sleep(0.05)
        remaining = left_behind(home, run)
    return first


def _send(pids: Iterable[int], sign: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_all(Path(sys.argv[1]), sys.argv[2], grace_s=float(sys.argv[3]))
