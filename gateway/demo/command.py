"""`nextstate demo`: start the stack in a directory of its own, run, show, stop."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from rich.console import Console

from gateway.config import load
from gateway.demo import arms, table
from gateway.demo.crowd import Crowd, Pace
from gateway.demo.loop import FULL, QUICK, Demo, Plan
from gateway.demo.questions import EVERYDAY
from gateway.demo.readings import Reader
from gateway.demo.report import Report
from gateway.demo.users import USERS, Manner
from gateway.errors import StackError
from gateway.local import launch, state
from gateway.local.config import LocalSettings
from gateway.local.leftovers import end_all
from gateway.local.processes import free_port
from gateway.local.stack import Stack
from gateway.store.database import Database
from gateway.telemetry import configure_logging

#: Slower and held closer to the base model than the trainer's defaults. With a KL weight of 0.1 two
#: full runs gained 1.3 in score, and one of them lost 2 of 18 facts: the most that is allowed.
#: With 0.2 it was slower at first: +0.57 and one fact lost by version 8.
TRAINER = {
    "optimizer": {"lr": 2e-4},
    # It was measured without the bounds on an update, which would halve steps of this size.
    "loss": {"kl_coef": 0.15, "max_step_kl": None, "opsm_delta": None},
    # Its users say thanks in one way, so all praise comes by one rule.
    "credit": {"negative_weight": 0.5, "rule_share": 1.0},
}

#: The exit status of what a signal stopped.
INTERRUPTED = 130


def demo(*, quick: bool, out: Path, console: Console) -> int:
    """Run the demo; 0 where every claim held, else 1. Raises what the stack and store raise."""
    plan = QUICK if quick else FULL
    settings = _settings(out / "stack", plan)
    _empty(settings.home)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "demo.log").open("w") as log:
        configure_logging(settings.log, "demo", log)
        report = asyncio.run(
            launch.run(
                settings,
                lambda stack: _run(plan, stack, console),
                say=lambda step: console.print(f"{step} …", style="dim"),
            )
        )
    if report is None:
        console.print("stopped before the end; nothing was measured")
        return INTERRUPTED
    report.write(out)
    return _summed_up(report, out, console)


def _summed_up(report: Report, out: Path, console: Console) -> int:
    console.print(table.scores(report.rows, report.control))
    console.print(table.verdicts(report.claims))
    console.print(
        f"{report.wall_s:.0f} s, {report.tally.requests} requests; "
        f"{out / 'report.json'} and {out / 'report.png'} are written",
        highlight=False,
        soft_wrap=True,
    )
    failed = [claim.name for claim in report.claims if not claim.held]
    if failed:
        console.print(f"Not shown by this run: {', '.join(failed)}.", style="bold red")
    return 1 if failed else 0


def _settings(home: Path, plan: Plan) -> LocalSettings:
    """What is configured, on a free port, with the plan's batch and the demo's recipe."""
    port = free_port("127.0.0.1", 0)
    return load(
        LocalSettings,
        local={"home": home},
        gateway={"host": "127.0.0.1", "port": port},
        freshness={"batch": plan.batch},
        trainer=TRAINER,
    )


def _empty(home: Path) -> None:
    """Remove what an earlier run left. Raises StackError where it still runs."""
    if state.running(home):
        raise StackError(f"a demo already runs in {home}")
    end_all(home)
    try:
        if home.exists():
            shutil.rmtree(home)
    except OSError as error:
        raise StackError(f"cannot empty {home}: {error.strerror}") from error


async def _run(plan: Plan, stack: Stack, console: Console) -> Report:
    settings = stack.settings
    base_model = Path(settings.model.path or "").name
    database = await Database.open(
        settings.database, settings.database_url, application="nextstate-demo"
    )
    try:
        async with arms.opened(
            database,
            url=stack.url,
            base_model=base_model,
            names=[user.name for user in USERS],
        ) as opened:
            with table.Progress(console) as progress:
                return await Demo(
                    plan=plan,
                    reader=Reader(database, opened.trained, opened.control),
                    crowd=Crowd(
                        users=USERS,
                        clients=opened.people,
                        questions=EVERYDAY,
                        manner=Manner(model=settings.model.name),
                        pace=Pace(batch=plan.batch),
                        control_share=plan.control_share,
                        seed=plan.seed,
                    ),
                    facts=opened.facts,
                    model=settings.model.name,
                    progress=progress,
                ).run()
    finally:
        await database.close()
