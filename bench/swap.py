"""`make bench-swap`: what clients notice of versions that change under load on the real engine.

Sixteen agents stream over HTTP from a gateway in a process of its own, which serves SGLang (a tiny
model) and keeps every turn in Postgres; each agent asks again as soon as it is answered. Meanwhile
versions are published as a trainer does it, proof included: as adapters (`lora`), as whole weights
(`full`), and as whole weights behind a server that answers 503 until it is done (`baseline_503`,
of our own making: it refuses what is new, lets what runs end, updates, and opens again).

`failed` counts requests without a whole answer, `truncated` those that ended before their limit
without a stop token, `restarted` second attempts at an engine and turns that were asked for again,
`unstored` answers that are not on record. `pause_ms` is the longest time that touches a swap in
which no agent gets anything, `added_ms` what requests that ran during a swap took longer than
others. `spans_wrong` is the number of stored version spans whose log-probabilities are not those
of that version's weights, scored again afterwards; of `spans_checked`, `spans_told_apart` are not
those of other weights either. Everything goes to `build/bench/swap.json`. `QUICK=1`: 20 swaps each,
one engine; else 200 each (the baseline 50), on one engine and on two, which takes an hour or more:
it is done in parts that are kept, none is begun after `MINUTES` (40), and a later run goes on where
this one was.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
from rich.console import Console
from rich.table import Table

from bench.swap_bed import WEIGHTS, Bed, Place
from bench.swap_figures import Window, part, silences, summary
from bench.swap_load import Agents
from bench.swap_spans import checked, stored
from gateway.config import EngineSettings, LogSettings
from gateway.engine.sglang import SglangEngine
from gateway.local.postgres import EmbeddedPostgres
from gateway.local.sglang import wait_ready
from gateway.records import PolicyKind
from gateway.store.database import migrate
from gateway.telemetry import configure_logging
from tests.fixtures_engine import START_TIMEOUT_S, SglangProcess
from tests.tiny_model import make_adapter, make_model

OUT = Path(__file__).parents[1] / "build" / "bench" / "swap.json"
AGENTS = 16
#: Requests that end between two swaps, beside those that end during one.
BETWEEN = 8

Swap = Callable[[Bed, Agents], Awaitable[Window]]


async def ours(bed: Bed, agents: Agents) -> Window:  # noqa: ARG001
    """From the first call of an engine until all of them serve the version."""
    policy = await bed.candidate()
    begin = time.monotonic()
    await bed.publish(policy)
    return begin, time.monotonic()


async def refusing(bed: Bed, agents: Agents) -> Window:
    """503 until done."""
    policy = await bed.candidate()
    begin = time.monotonic()
    agents.shut.set()
    await agents.until(lambda: agents.running == 0)
    await bed.publish(policy)
    agents.shut.clear()
    return begin, time.monotonic()


async def measured(place: Place, kind: PolicyKind, swap: Swap, swaps: int) -> dict[str, Any]:
    """One way to swap, so many times; see `part` of `bench.swap_figures`."""
    async with Bed.open(place, kind) as bed:
        # Version 0 of adapters has none: what is scored again later begins with the first.
        await bed.publish(await bed.candidate())
        windows: list[Window] = []
        async with Agents(bed.url, bed.key, AGENTS) as agents:
            await agents.served(2 * AGENTS)
            for _ in range(swaps):
                windows.append(await swap(bed, agents))
                await agents.served(BETWEEN)
        await bed.drained()
        await bed.close_gateway()
        replies, turns = agents.replies, await stored(bed.database)
        spans = await checked(turns, bed.by_weights, WEIGHTS)
        pauses = silences(replies, windows)
        if swap is refusing:
            pauses = [1e3 * (end - begin) for begin, end in windows]
        return part(replies, turns, windows, pauses, bed.again()) | spans


async def started(count: int, home: Path) -> tuple[list[SglangProcess], list[EngineSettings]]:
    """Real servers that answer, and the weights of all versions."""
    model = make_model(home / "model-0")
    for number in range(WEIGHTS):
        make_adapter(home / f"adapter-{number}", seed=number + 1)
        make_model(home / f"model-{number}", seed=number)
    processes = [SglangProcess(model, home / f"engine-{n}.log") for n in range(count)]
    engines = [
        EngineSettings(name=f"sglang-{n}", url=process.url) for n, process in enumerate(processes)
    ]
    for process, settings in zip(processes, engines, strict=True):
        engine = SglangEngine(settings)
        await wait_ready(engine, START_TIMEOUT_S, alive=process.alive)
        await engine.close()
    return processes, engines


async def empty_database(server: EmbeddedPostgres, name: str) -> str:
    """The URL of a fresh, migrated database."""
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    url = urlunsplit(urlsplit(server.url)._replace(path=f"/{name}"))
    await migrate(url)
    return url


#: Adapters first: whole weights would change the base below them.
WAYS: dict[str, tuple[PolicyKind, Swap]] = {
    "lora": (PolicyKind.LORA, ours),
    "full": (PolicyKind.FULL, ours),
    "baseline_503": (PolicyKind.FULL, refusing),
}


class Plan:
    """Which parts there are, and what those that were measured before have found."""

    def __init__(self, swaps: int, most_engines: int, size: int, kept: Path) -> None:
        self._kept, self.engines, self._size, self._most = kept, most_engines, size, swaps
        self.parts = [
            (name, count, number)
            for name in WAYS
            for count in range(1, most_engines + 1)
            for number in range(-(-self._swaps(name) // size))
        ]

    def due(self) -> list[tuple[str, int, int]]:
        return [part for part in self.parts if not self._file(*part).exists()]

    def size(self, name: str, number: int) -> int:
        """Swaps of a part; the last one may be smaller."""
        return min(self._size, self._swaps(name) - number * self._size)

    def _swaps(self, name: str) -> int:
        """What is ours is to be shown in full; a baseline needs fewer, but not below 20."""
        return self._most if name != "baseline_503" else min(self._most, max(20, self._most // 4))

    def keep(self, name: str, count: int, number: int, found: dict[str, Any]) -> None:
        file = self._file(name, count, number)
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(".aside")
        aside.write_text(json.dumps(found))
        aside.rename(file)

    def report(self) -> dict[str, Any]:
        """Once nothing is due."""
        report: dict[str, Any] = {"agents": AGENTS, "engines": 1}
        for name in WAYS:
            for count in range(1, self.engines + 1):
                place = report if count == 1 else report.setdefault("two_engines", {})
                files = [self._file(*one) for one in self.parts if one[:2] == (name, count)]
                place[name] = summary([json.loads(file.read_text()) for file in files])
        return report

    def _file(self, name: str, count: int, number: int) -> Path:
        return self._kept / f"{name}-{count}-{number}.json"


async def run(plan: Plan, seconds: float) -> None:
    """Measure parts that are due, none of which begins after so many seconds.

    Engines are started anew for each way: whole weights change the base below adapters.
    """
    until = time.monotonic() + seconds
    for name, (kind, swap) in WAYS.items():
        due = [part for part in plan.due() if part[0] == name]
        if not due or time.monotonic() > until:
            continue
        with (
            tempfile.TemporaryDirectory() as directory,
            EmbeddedPostgres(Path(directory) / "postgres") as server,
        ):
            home = Path(directory)
            processes, engines = await started(max(count for _, count, _ in due), home)
            try:
                for _, count, number in due:
                    if time.monotonic() > until:
                        break
                    begun = time.monotonic()
                    size = plan.size(name, number)
                    url = await empty_database(server, f"part_{count}_{number}")
                    place = Place(engines[:count], home, url)
                    found = await measured(place, kind, swap, size)
                    plan.keep(name, count, number, found)
                    took = time.monotonic() - begun
                    print(f"{name}, engines {count}, part {number}: {size} swaps, {took:.0f} s")
            finally:
                for process in processes:
                    process.stop()


def table(report: dict[str, Any]) -> Table:
    shown = Table(title=f"{AGENTS} streaming agents while versions change")
    ways = {name: report[name] for name in ("lora", "full", "baseline_503")}
    ways |= {f"{name}, two engines": one for name, one in report.get("two_engines", {}).items()}
    shown.add_column("way")
    for figure in report["lora"]:
        shown.add_column(figure.replace("_", "\n"), justify="right")
    for name, values in ways.items():
        shown.add_row(name, *("" if value is None else str(value) for value in values.values()))
    return shown


def main() -> None:
    quick = os.environ.get("QUICK", "") not in ("", "0")
    configure_logging(LogSettings(level="error"), "bench")
    if quick:
        with tempfile.TemporaryDirectory() as kept:
            plan = Plan(20, 1, 20, Path(kept))
            asyncio.run(run(plan, math.inf))
            report = plan.report()
    else:
        plan = Plan(200, 2, 25, OUT.parent / "swap-parts")
        asyncio.run(run(plan, 60 * float(os.environ.get("MINUTES", "40"))))
        if due := plan.due():
            print(f"{len(due)} of {len(plan.parts)} parts are left: run it again")
            return
        report = plan.report()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(report, indent=2) + "\n")
    Console(width=160).print(table(report))


if __name__ == "__main__":
    main()
