"""Environments of client packages, whose pins disagree with ours, and programs run in them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from gateway.local.cache import cache_dir
from gateway.local.environments import Environment, checkout

_LIMIT_S = 120
_PROGRAMS = Path(__file__).parent / "contract" / "clients"


def client_python(name: str) -> Path:
    """The interpreter of `locks/clients-NAME.txt`, built in the cache the first time."""
    lock = checkout() / "locks" / f"clients-{name}.txt"
    digest = Environment(Path(), (lock,), torch=False).digest
    home = Environment(cache_dir() / f"client-{name}-{digest[:16]}", (lock,), torch=False)
    return home.ensure(_tell)


async def run_client(python: Path, program: str, *arguments: str, **environ: str) -> Any:
    """What `contract/clients/PROGRAM` prints, decoded. Its own errors are the failure's text."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        python,
        "-I",
        _PROGRAMS / program,
        *arguments,
        env=clean | environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
