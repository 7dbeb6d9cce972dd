"""Append-only files where calls wait while Postgres is away.

A file is a series of frames: length and CRC-32 of the payload, both unsigned 32-bit
little-endian, then the payload. A file is locked by the process that appends to it; one that is
not locked belongs to whoever drains it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from struct import Struct
from typing import IO

from gateway.errors import StoreUnavailable
from gateway.telemetry import get_logger

log = get_logger(__name__)

_HEAD = Struct("<II")
_SUFFIX = ".spool"
_REJECTED = "rejected.frames"


class Spool:
    """The files of one directory. Every method blocks; `append` returns when data is on disk."""

    def __init__(
        self, directory: Path, *, max_bytes: int, segment_bytes: int = 16 * 1024 * 1024
    ) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._active: FileIO | None = None
        self._lock = threading.Lock()

    def append(self, payloads: Sequence[bytes]) -> None:
        """Write and fsync. Raises StoreUnavailable where the disk or the bound refuses."""
        data = b"".join(map(_frame, payloads))
        with self._lock:
            if self._size() + len(data) > self._max_bytes:
                raise StoreUnavailable(f"the spool holds its limit of {self._max_bytes} bytes")
            try:
                self._write(data)
            except OSError as error:
                raise StoreUnavailable(f"the spool cannot be written: {error}") from error

    def waiting(self) -> bool:
        """Whether anything is to be drained."""
        return self._directory.is_dir() and any(self._directory.glob(f"*{_SUFFIX}"))

    def segments(self) -> list[Path]:
        """The files to drain, oldest first; this process appends to none of them any more."""
        with self._lock:
            self._seal()
        return sorted(self._directory.glob(f"*{_SUFFIX}"))

    @contextlib.contextmanager
    def draining(self, segment: Path) -> Iterator[list[bytes]]:
        """The payloads of a file, up to the first frame that is not whole.

        None of a file that another process is still using. The file is removed where the block
        ends without an error.
        """
        try:
            file = segment.open("rb")
        except FileNotFoundError:
            yield []
            return
        with file:
            if not _claim(file):
                yield []
                return
            yield list(_frames(file, segment))
            segment.unlink(missing_ok=True)

    def reject(self, payload: bytes) -> None:
        """Keep a payload that Postgres will never take, for a person to look at."""
        with self._lock, _open(self._directory / _REJECTED) as file:
            _write_all(file, _frame(payload))

    def rejected(self) -> list[bytes]:
        """What was set aside, the oldest first."""
        with self._lock:
            return self._rejected()

    def keep_rejected(self, kept: Sequence[bytes], of: int) -> None:
        """Leave only these of the first `of` that were set aside, and what came since."""
        path = self._directory / _REJECTED
        with self._lock:
            frames = [*kept, *self._rejected()[of:]]
            rest = path.with_suffix(".new")
            rest.unlink(missing_ok=True)
            with _open(rest) as file:
                _write_all(file, b"".join(map(_frame, frames)))
            rest.replace(path)
            _sync_directory(self._directory)

    def _rejected(self) -> list[bytes]:
        path = self._directory / _REJECTED
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            return list(_frames(file, path))

    def close(self) -> None:
        with self._lock:
            self._seal()

    def _write(self, data: bytes) -> None:
        if self._active is None:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._directory / f"{time.time_ns():020d}-{os.getpid()}{_SUFFIX}"
            # Named only once it is locked, so that nobody drains it before.
            unnamed = path.with_suffix(".new")
            self._active = _open(unnamed)
            _claim(self._active)
            unnamed.rename(path)
            _sync_directory(self._directory)
        file = self._active
        before = file.seek(0, os.SEEK_END)
        try:
            _write_all(file, data)
        except OSError:
            # Half a frame in the middle would hide what comes after it.
            self._seal(at=before)
            raise
        if before + len(data) >= self._segment_bytes:
            self._seal()

    def _seal(self, at: int | None = None) -> None:
        file, self._active = self._active, None
        if file is not None:
            if at is not None:
                file.truncate(at)
            file.close()

    def _size(self) -> int:
        size = 0
        for path in self._directory.glob(f"*{_SUFFIX}"):
            # A file that was just drained is gone.
            with contextlib.suppress(FileNotFoundError):
                size += path.stat().st_size
        return size


def _frame(payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _open(path: Path) -> FileIO:
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
    return FileIO(descriptor, "ab")


def _write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def _claim(file: IO[bytes] | FileIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _frames(file: IO[bytes], segment: Path) -> Iterator[bytes]:
    while head := file.read(_HEAD.size):
        if len(head) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            payload = file.read(length)
            if len(payload) == length and zlib.crc32(payload) == checksum:
                yield payload
                continue
        log.warning("spool_torn", segment=segment.name, offset=file.tell())
        return


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
