"""Does it learn? A real small model on the CPU, simulated users, and arms that learn differently.

`python -m bench.learning`; `make bench-learning`. Curves and areas are printed and go, with what
stale samples cost, to `build/bench/learning.json` and `learning.png`. Every version of every arm
and seed is kept below `build/bench/learning/`, and a run ends within `MINUTES` (55): started again
it goes on where it was. What is done lies in `finished` there, and is read from
`bench/measured/learning` too. Arms are compared on the seeds that all of them have. `QUICK=1`: one
seed of `none` and `combined`, and fewer versions. `TUNE=1` compares learning rates, the same for
every arm, on a seed of its own. `SEEDS=1,2`: these alone. `RATE=3e-4`: another learning rate.
`THREADS`: of torch, all processors by default; on a busy machine one is faster.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.learning_arms import ARMS, RATES
from bench.learning_figures import arm, picture
from bench.learning_kept import MEASURED, Kept
from bench.learning_quality import FACTS_TOLERANCE, TOLERANCE
from bench.learning_run import Plan, Run, Stage
from bench.learning_staleness import compared
from gateway.local.model import ensure_model

OUT = Path("build/bench")
SEEDS = (1, 2, 3)
QUICK = Plan(versions=6)
#: Learning rates are compared by what corrects most and what corrects nothing.
TUNED = ("combined", "openclaw")
TUNING = Plan(versions=4, batch=18, ends=36)
_TUNED_ON = 101
_ROUNDING = 1e-9


def home(plan: Plan) -> Path:
    """Where runs of one plan are kept: those of another say nothing of it."""
    name = f"v{plan.versions}-b{plan.batch}-lag{plan.lag}-lr{plan.rate:g}"
    return OUT / "learning" / name


def played(
    arms: Sequence[str], seeds: Sequence[int], plan: Plan, stage: Stage, late: Callable[[], bool]
) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """Records by arm and seed of the runs that are whole; seed by seed, the control first."""
    kept = Kept((OUT / "learning" / "finished", MEASURED))
    found: dict[str, dict[int, list[dict[str, Any]]]] = {name: {} for name in arms}
    for seed in seeds:
        for name in arms:
            records = kept.read(name, seed, plan)
            if records is None and (records := _run(name, seed, plan, stage, late)):
                print(f"{name}, seed {seed}: {kept.write(name, seed, plan, records)}", flush=True)
            if records:
                found[name][seed] = records
    return {name: seeds for name, seeds in found.items() if seeds}


def _run(
    name: str, seed: int, plan: Plan, stage: Stage, late: Callable[[], bool]
) -> list[dict[str, Any]] | None:
    run = Run(name, seed, plan, home(plan))
    if run.missing and not run.go(stage, late):
        return None
    records = [run.record(version) for version in range(plan.versions + 1)]
    return [record for record in records if record is not None]


def figures(
    found: dict[str, dict[int, list[dict[str, Any]]]],
) -> dict[str, dict[str, Any]]:
    """By arm, of the seeds that all have."""
    controls = found.get("none", {})
    shared = set.intersection(*map(set, found.values())) if found else set()
    return {
        name: arm({seed: seeds[seed] for seed in sorted(shared)}, controls)
        for name, seeds in found.items()
        if shared
    }


def table(arms: dict[str, dict[str, Any]]) -> Table:
    """The area, both ends, and whether quality was kept by every version."""
    shown = Table(title="Scores of first turns")
    for heading in ("arm", "seeds", "area [95 %]", "first", "last", "facts", "answers", "quality"):
        shown.add_column(heading, no_wrap=True)
    for name, one in arms.items():
        low, middle, high = one["auc"]
        facts, answers = one["facts_right"], one["answer_logprob"]
        ends = [sum(seed[at] for seed in one["seeds"]) / len(one["seeds"]) for at in (0, -1)]
        lost = answers[0] - min(answers), facts[0] - min(facts)
        kept = lost[0] <= TOLERANCE + _ROUNDING and lost[1] <= FACTS_TOLERANCE + _ROUNDING
        shown.add_row(
            name,
            str(len(one["seeds"])),
            f"{middle:.3f} [{low:.3f}, {high:.3f}]",
            *(f"{end:.3f}" for end in ends),
            f"{facts[0]:.2f} → {facts[-1]:.2f}",
            f"{answers[0]:.3f} → {answers[-1]:.3f}",
            "kept" if kept else "lost",
        )
    return shown


def tuned(stage: Stage, late: Callable[[], bool]) -> None:
    """Two arms at every rate, briefly, on a seed that no figure comes from."""
    for rate in RATES:
        plan = replace(TUNING, rate=rate)
        arms = figures(played(TUNED, (_TUNED_ON,), plan, stage, late))
        print(f"learning rate {rate:g}")
        Console().print(table(arms))


def main() -> None:
    threads = int(os.environ.get("THREADS", os.cpu_count() or 1))
    torch.set_num_threads(threads)
    ends = time.monotonic() + 60 * float(os.environ.get("MINUTES", "55"))
    stage = Stage(ensure_model(), threads)

    def late() -> bool:
        return time.monotonic() > ends

    if os.environ.get("TUNE"):
        tuned(stage, late)
        return
    quick = bool(os.environ.get("QUICK"))
    arms, seeds = (("none", "combined"), SEEDS[:1]) if quick else (ARMS, SEEDS)
    if named := os.environ.get("SEEDS"):
        seeds = tuple(map(int, named.split(",")))
    plan = QUICK if quick else Plan()
    if rate := os.environ.get("RATE"):
        plan = replace(plan, rate=float(rate))
    runs = played(arms, seeds, plan, stage, late)
    found = figures(runs)
    place = OUT / "learning" / "staleness"
    place.mkdir(parents=True, exist_ok=True)
    staleness = compared(place, late=late)
    (OUT / "learning.json").write_text(json.dumps({"arms": found, "staleness": staleness}))
    if found:
        picture(found, OUT / "learning.png")
        Console(width=120).print(table(found))
    if staleness:
        print({name: staleness[name] for name in ("better", "worse", "sign_test_p")})
    short = len(arms) * len(seeds) - sum(map(len, runs.values()))
    if short or not staleness:
        print(f"{short} of the runs are not done yet: start it again", file=sys.stderr)
    print(f"{OUT / 'learning.json'} is written", file=sys.stderr)


if __name__ == "__main__":
    main()
