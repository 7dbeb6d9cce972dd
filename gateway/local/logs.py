"""The stack's logs, shown together."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TextIO

from gateway.errors import StackError

_LOOK_S = 0.25


def show(logs: Path, name: str | None, *, lines: int, follow: bool, out: TextIO) -> None:
    """Write the last `lines` of one log or of each, then, with `follow`, whatever is added.

    Raises StackError where there is no such log.
    """
    known = {path.stem: path for path in sorted(logs.glob("*.log"))}
    if name is not None and name not in known:
        there = ", ".join(known) or "none yet"
        raise StackError(f"no log of {name!r} in {logs}; there are: {there}")
    if not known:
        raise StackError(f"no logs in {logs}")
    shown = {name: known[name]} if name is not None else known
    places = {}
    for label, path in shown.items():
        with path.open(errors="replace") as file:
            for line in deque(file, maxlen=lines):
                _write(out, label, line, prefix=name is None)
            places[label] = file.tell()
    while follow:
        for label, path in shown.items():
            places[label] = _added(out, label, path, places[label], prefix=name is None)
        out.flush()
        time.sleep(_LOOK_S)


def _added(out: TextIO, label: str, path: Path, place: int, *, prefix: bool) -> int:
    """Write the whole lines that were added since `place`; the next place."""
    with path.open("rb") as file:
        # A log that was moved aside begins again.
        file.seek(place if place <= path.stat().st_size else 0)
        while line := file.readline():
            if not line.endswith(b"\n"):
                return file.tell() - len(line)
            _write(out, label, line.decode(errors="replace"), prefix=prefix)
        return file.tell()


def _write(out: TextIO, label: str, line: str, *, prefix: bool) -> None:
    out.write(f"{label:<9} {line}" if prefix else line)
