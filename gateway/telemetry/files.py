"""A log in files: one that grows, and older ones that were moved aside by size or age."""

from __future__ import annotations

import fcntl
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from gateway.config import LogFileSettings
from gateway.errors import ConfigError

_MOST_PROCESSES = 64


class RotatingFile(io.TextIOBase):
    """`NAME.log` in a directory; used by one thread.

    Where another process writes that name already, `NAME-2.log` and so on. A file is moved aside
    to `NAME.log.1` (and that to `.2`) before a write that would exceed `max_bytes`, and at the
    first write after `max_age_s`. Raises ConfigError where the directory cannot be used.
    """

    def __init__(
        self, settings: LogFileSettings, name: str, *, now: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._now = settings, now
        try:
            settings.directory.mkdir(parents=True, exist_ok=True)
            self._lock, self.path = _claimed(settings.directory, name)
            self._open()
        except OSError as error:
            raise ConfigError(f"log.file.directory {settings.directory}: {error}") from None

    def write(self, text: str) -> int:
        """Append whole lines. Raises OSError."""
        data = text.encode("utf-8", "backslashreplace")
        size, now = self._file.tell(), self._now()
        # A clock that was set back begins a new age, not an endless one.
        aged = not 0 <= now - self._since < self._settings.max_age_s
        if size and (aged or size + len(data) > self._settings.max_bytes):
            self._rotate()
        elif not size:
            self._begin()
        self._file.write(data)
        return len(text)

    def flush(self) -> None:
        """Written through at once as it is; nothing waits."""

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        """Let another process have the name."""
        if not self.closed:
            self._file.close()
            self._lock.close()
        super().close()

    def _open(self) -> None:
        self._file = self.path.open("ab", buffering=0)
        if not self._file.tell():
            self._begin()
        else:
            self._since = Path(self._lock.name).stat().st_mtime

    def _begin(self) -> None:
        """Note when the first line was written where the next process finds it."""
        self._since = self._now()
        os.utime(self._lock.name, (self._since, self._since))

    def _rotate(self) -> None:
        self._file.close()
        keep = self._settings.keep
        for number in range(keep, 0, -1):
            earlier = self._aside(number - 1) if number > 1 else self.path
            if earlier.exists():
                earlier.replace(self._aside(number))
        if not keep:
            self.path.unlink(missing_ok=True)
        self._open()

    def _aside(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def _claimed(directory: Path, name: str) -> tuple[IO[bytes], Path]:
    """The first free name, and the lock that holds it until it is closed or the process ends."""
    for number in range(1, _MOST_PROCESSES + 1):
        stem = name if number == 1 else f"{name}-{number}"
        lock = (directory / f".{stem}.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return lock, directory / f"{stem}.log"
    raise OSError(f"{_MOST_PROCESSES} processes log there as {name} already")
