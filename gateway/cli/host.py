"""What the doctor looks at on this machine: GPU, disk, ports."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gateway.cli.finding import Finding, ok, warning, wrong
from gateway.device import device
from gateway.errors import NextstateError
from gateway.local import state
from gateway.local.config import LocalSettings

#: Below this much free space there is a warning, in bytes.
_ROOM = 5 << 30


def findings(settings: LocalSettings) -> list[Finding]:
    return [_gpu(), *_disks(settings), *_ports(settings)]


def _gpu() -> Finding:
    try:
        kind = device()
    except NextstateError as error:
        return wrong("GPU", error.message, "set NEXTSTATE_DEVICE to auto, cpu or cuda")
    if kind == "cpu":
        return ok("GPU", "none is used")
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        mend = "install the NVIDIA driver (in a container: its toolkit), or NEXTSTATE_DEVICE=cpu"
        return wrong("GPU", f"nvidia-smi fails: {type(error).__name__}", mend)
    return ok("GPU", "; ".join(line.strip() for line in told.splitlines() if line.strip()))


def _disks(settings: LocalSettings) -> Iterator[Finding]:
    """Where turns wait, versions are kept and logs are written."""
    places = {
        "database.spool": settings.database.spool,
        "trainer.directory": settings.trainer.directory,
    }
    if settings.log.file is not None:
        places["log.file.directory"] = settings.log.file.directory
    for name, path in places.items():
        yield _disk(name, path.expanduser().absolute())


def _disk(name: str, path: Path) -> Finding:
    there = next(one for one in (path, *path.parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        mend = f"let user {os.geteuid()} write there, or set {name} to another directory"
        return wrong("disk", f"{name}: {there} cannot be written", mend)
    free = shutil.disk_usage(there).free
    said = f"{name}: {free / 2**30:.1f} GiB free for {path}"
    if free >= _ROOM:
        return ok("disk", said)
    return warning("disk", said, "make room: turns that find none are refused, versions not kept")


def _ports(settings: LocalSettings) -> Iterator[Finding]:
    """Whether each port can be had, or is had by the stack that runs here."""
    running = state.running(settings.home) is not None
    wanted = {
        "gateway.port": (settings.gateway.host, settings.gateway.port),
        "judge.metrics_port": (settings.judge.metrics_host, settings.judge.metrics_port),
        "trainer.metrics_port": (settings.trainer.metrics_host, settings.trainer.metrics_port),
    }
    for name, (host, port) in wanted.items():
        if not port:
            continue
        why = _refused(host, port)
        if why is None:
            yield ok("port", f"{name}: {host}:{port} is free")
        elif why == errno.EADDRINUSE:
            said = f"{name}: {host}:{port} is in use"
            mend = f"right where it is Nextstate itself; else choose another {name}"
            yield ok("port", f"{said} by the stack") if running else warning("port", said, mend)
        else:
            said = f"{name}: {host}:{port}: {os.strerror(why)}"
            yield wrong("port", said, f"choose another host or port for {name}")


def _refused(host: str, port: int) -> int | None:
    """The number of the error of listening there, None where it works."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.errno or errno.EINVAL
    return None
