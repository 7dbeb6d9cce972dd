"""100,000 requests through one gateway process, recorded in a real Postgres: memory stays put."""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from bench.cases import Runner, cases
from bench.conversations import Speaker
from bench.load import closed_loop
from bench.model import NAME, make_model
from bench.processes import rss_mb
from bench.systems import NEXTSTATE, Systems
from bench.upstream import Upstream
from gateway.tokens.tokenizer import Tokenizer

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "100000"))
#: As many as fill the gateway's caches before its memory is looked at first.
WARM = REQUESTS // 5
MOST_MB, GROWTH_MB = 250, 20
#: Nothing here is a matter of time: a machine that does other work, too, only takes longer.
PATIENCE_S = 3600.0


@pytest.mark.timeout(6 * 3600)
async def test_memory_does_not_grow_with_requests(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        model = make_model(tmp_path / "model")
        upstream = await Upstream.start(tmp_path, _say)
        stack.callback(upstream.process.stop)
        runner = Runner(upstream, Speaker(NAME), Tokenizer.load(model))
        await runner.status(model)
        launcher = Systems(
            stack, home=tmp_path, logs=tmp_path, upstream_port=upstream.port, say=_say
        )
        gateway = await launcher.start(NEXTSTATE, model)
        case = next(case for case in cases(quick=False) if case.name == "small")
        await runner.prepare(case)

        async def send(count: int) -> float:
            """Resident megabytes once so many requests have been answered."""
            while count:
                batch = runner.conversations(case)[: min(count, 500)]
                await closed_loop(
                    gateway.target, batch, case.connections, turns=1, within_s=PATIENCE_S
                )
                count -= len(batch)
            return rss_mb(gateway.pid)

        before = await send(WARM)
        after = await send(REQUESTS - WARM)
        _say(f"resident after {WARM}: {before:.0f} MB, after {REQUESTS}: {after:.0f} MB")
        connection = await asyncpg.connect(launcher.database_url)
        try:
            turns = await connection.fetchval("SELECT count(*) FROM turns")
        finally:
            await connection.close()
        assert turns == REQUESTS
        assert after <= MOST_MB
        assert after - before <= GROWTH_MB


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
