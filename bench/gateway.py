"""`make bench-gateway`: what a request costs, the gateway beside servers that record nothing.

CPU time of each system's own processes is the figure to trust; times are taken on a busy machine.
All systems run at once, and every case goes round them in turn, so that ratios hold. One table is
printed, and the same is written to `build/bench/gateway.json`. `QUICK=1` takes about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import uvloop
from rich.console import Console

from bench.cases import Case, Runner, cases
from bench.conversations import Speaker
from bench.figures import Run, figures, ratios
from bench.load import LoadFailed, closed_loop
from bench.model import NAME, make_model
from bench.processes import ROOT, NotReady, cores, rss_mb
from bench.systems import LITELLM, NEXTSTATE, System, Systems, names
from bench.table import table
from bench.upstream import Upstream
from gateway.errors import NextstateError
from gateway.tokens.tokenizer import Tokenizer

_OUT = ROOT / "build" / "bench"
BASELINE = "fastapi_aiohttp"

#: Requests of the agentic cases that extended the ids on record, and all that had a parent.
_EXTENDED = """
SELECT count(*) FILTER (WHERE branch_reason IS NULL) AS extended, count(*) AS followed
FROM turns WHERE depth > 0
"""


class Bench:
    """One measurement, from start to report."""

    def __init__(
        self, options: argparse.Namespace, stack: AsyncExitStack, say: Callable[[str], None]
    ) -> None:
        self._options, self._stack, self._say = options, stack, say
        self._counts: dict[str, int] = {}

    async def run(self) -> dict[str, Any]:
        """The report. Raises NotReady, LoadFailed and what the gateway's parts raise."""
        home = Path(tempfile.mkdtemp(prefix="nxs-bench-"))
        self._stack.callback(shutil.rmtree, home, ignore_errors=True)
        _OUT.mkdir(parents=True, exist_ok=True)
        model = await asyncio.to_thread(make_model, home / "model")
        tokenizer = Tokenizer.load(model)
        upstream = await Upstream.start(_OUT, self._say)
        self._stack.callback(upstream.process.stop)
        runner = Runner(upstream, Speaker(NAME), tokenizer)
        await runner.status(model)
        launcher = Systems(
            self._stack, home=home, logs=_OUT, upstream_port=upstream.port, say=self._say
        )
        systems = [await launcher.start(name, model) for name in self._options.systems]
        # Last, since what is started inherits it.
        os.sched_setaffinity(0, cores()[1])
        planned = cases(quick=self._options.quick)
        await self._warm_up(runner, planned, systems)
        runs, direct = await self._rounds(runner, planned, systems)
        report = self._report(systems, runs, direct)
        if launcher.database_url:
            report["extended"] = await _extended(launcher.database_url)
        if self._options.soak:
            await self._soak(runner, systems, report)
        return report

    async def _warm_up(
        self, runner: Runner, planned: Sequence[Case], systems: Sequence[System]
    ) -> None:
        self._say("warming up")
        for case in planned:
            few = case.warm_up()
            await runner.prepare(few)
            for system in systems:
                await runner.run(few, system)

    async def _rounds(
        self, runner: Runner, planned: Sequence[Case], systems: Sequence[System]
    ) -> tuple[dict[str, dict[str, list[Run]]], dict[str, list[Run]]]:
        """Runs by system and case, and those without any system."""
        runs: dict[str, dict[str, list[Run]]] = {
            system.name: {case.name: [] for case in planned} for system in systems
        }
        direct: dict[str, list[Run]] = {case.name: [] for case in planned}
        for number in range(self._options.rounds):
            for case in planned:
                self._say(f"round {number + 1} of {self._options.rounds}: {case.name}")
                await runner.prepare(case)
                direct[case.name].append(await runner.direct(case))
                for system in systems:
                    run = await runner.run(case, system)
                    runs[system.name][case.name].append(run)
                    sent = run.requests + (case.conversations if case.agentic else 0)
                    self._counts[system.name] = self._counts.get(system.name, 0) + sent
        return runs, direct

    def _report(
        self,
        systems: Sequence[System],
        runs: dict[str, dict[str, list[Run]]],
        direct: dict[str, list[Run]],
    ) -> dict[str, Any]:
        told = {
            system.name: {
                **figures(runs[system.name], direct),
                "rss_mb": rss_mb(system.pid),
                "requests": self._counts[system.name],
            }
            for system in systems
        }
        return {
            "systems": told,
            "baseline": BASELINE,
            "ratios": ratios(told, BASELINE),
            "rounds": self._options.rounds,
            "quick": self._options.quick,
        }

    async def _soak(
        self, runner: Runner, systems: Sequence[System], report: dict[str, Any]
    ) -> None:
        """Send the gateway many small requests, then look at its memory again."""
        case = next(case for case in cases(quick=False) if case.name == "small")
        await runner.prepare(case)
        for system in systems:
            if system.name != NEXTSTATE:
                continue
            left = self._options.soak
            while left > 0:
                self._say(f"soaking: {left} requests left")
                batch = runner.conversations(case)[:left]
                await closed_loop(system.target, batch, case.connections, turns=1)
                left -= len(batch)
            report["systems"][NEXTSTATE] |= {
                "rss_mb": rss_mb(system.pid),
                "requests": self._counts[NEXTSTATE] + self._options.soak,
            }
        report["ratios"] = ratios(report["systems"], BASELINE)


async def _extended(database_url: str) -> dict[str, int]:
    connection = await asyncpg.connect(database_url)
    try:
        row = await connection.fetchrow(_EXTENDED)
    finally:
        await connection.close()
    assert row is not None
    return dict(row)


async def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Run it all; whatever ends it, nothing is left running. A signal raises CancelledError."""
    task = asyncio.current_task()
    assert task is not None
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(sign, task.cancel)
    async with AsyncExitStack() as stack:
        return await Bench(options, stack, say).run()


def main() -> int:
    """The exit code: 0 for a report, 1 for a failure, 130 for an interruption."""
    options = _options()
    console = Console(stderr=True, highlight=False)
    if LITELLM not in names():
        console.print("litellm: skipped, its proxy is not installed")
    try:
        report = uvloop.run(measure(options, console.print))
    except asyncio.CancelledError:
        console.print("interrupted: everything is stopped")
        return 130
    except (NextstateError, NotReady, LoadFailed) as error:
        console.print(f"bench: {error}")
        return 1
    path = _OUT / "gateway.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    Console(width=None if sys.stdout.isatty() else 150).print(table(report))
    return 0


def _options() -> argparse.Namespace:
    quick = os.environ.get("QUICK", "") not in ("", "0")
    parser = argparse.ArgumentParser(prog="make bench-gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2 if quick else 5)
    parser.add_argument("--systems", nargs="+", choices=names(), default=names())
    parser.add_argument(
        "--soak", type=int, default=0, help="requests to send the gateway before its memory is read"
    )
    options = parser.parse_args()
    options.quick = quick
    return options


if __name__ == "__main__":
    sys.exit(main())
