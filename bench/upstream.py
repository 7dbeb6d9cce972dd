"""The upstream's process: compiled where there is a C compiler, and told what to say."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import quote

from bench.http_client import Connection, post
from bench.processes import Process, cores, python

_SOURCE = Path(__file__).with_name("upstream.c")


class Upstream:
    """A running upstream."""

    def __init__(self, process: Process, port: int) -> None:
        self.process, self.port = process, port

    @classmethod
    async def start(cls, directory: Path, say: Callable[[str], None]) -> Self:
        """Build and start it. Raises NotReady, or CalledProcessError where it does not compile."""
        compiler = shutil.which(os.environ.get("CC", "cc"))
        command = python("-m", "bench.upstream_server")
        if compiler is None:
            say("no C compiler: the upstream is Python's, slower, and added times are less exact")
        else:
            program = directory / "upstream"
            build = [compiler, "-O2", "-o", str(program), str(_SOURCE)]
            await asyncio.to_thread(subprocess.run, build, check=True, timeout=120)
            command = [str(program)]
        process = Process("upstream", command, log=directory / "upstream.log", on=cores()[1])
        try:
            return cls(process, int(await process.printed()))
        except BaseException:
            process.stop()
            raise

    async def says(self, path: str, records: Sequence[bytes], pace_s: float = 0.0) -> None:
        """From now on, answer requests for `path` with these records, so many seconds apart."""
        body = b"".join(b"%d\n%b" % (len(record), record) for record in records)
        target = f"/control?path={quote(path)}&pace_us={round(pace_s * 1e6)}"
        connection = await Connection.open("127.0.0.1", self.port)
        try:
            status = await connection.exchange(post(target, {}, body), lambda _: None)
        finally:
            connection.close()
        if status != 204:
            raise RuntimeError(f"the upstream took no script for {path}: status {status}")
