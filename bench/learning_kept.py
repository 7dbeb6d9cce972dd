"""Runs that are done, one small file each: what is scored of them, and what they were runs of.

They are written below `build/` and read from `bench/measured/learning` too, which is in git: copied
there, they are there for the next machine. What another plan or recipe gave is not counted.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.learning_arms import config
from bench.learning_figures import first_turns
from bench.learning_quality import ANSWERS
from bench.learning_run import Plan
from bench.learning_turns import LIMIT, PERSISTENCE, TEMPERATURE
from bench.learning_users import PEOPLE
from gateway.demo.questions import FACTS

MEASURED = Path(__file__).parent / "measured" / "learning"
_PARTS = {"lora", "optimizer", "loss", "credit", "truncated", "minibatches"}


class Kept:
    """Finished runs in `places`; new ones are written into the first."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places

    def read(self, arm: str, seed: int, plan: Plan) -> list[dict[str, Any]] | None:
        """Its records by version, first turns alone; None where no such run is kept."""
        wanted = _facts(arm, seed, plan)
        for path in self._files(f"{arm}-{seed}-*.json"):
            found = json.loads(path.read_text())
            if {name: found[name] for name in wanted} == wanted:
                return [_record(version) for version in found["versions"]]
        return None

    def write(self, arm: str, seed: int, plan: Plan, records: Sequence[dict[str, Any]]) -> Path:
        facts = _facts(arm, seed, plan)
        name = f"{arm}-{seed}-{_digest(facts)[:8]}.json"
        versions = [
            {
                "quality": record["quality"],
                "turns": [[*cell, score] for cell, score in first_turns(record)],
            }
            for record in records
        ]
        path = self._places[0] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(map(json.dumps, versions))
        head = json.dumps({**facts, "commit": _commit()})[:-1]
        aside = path.with_suffix(".part")
        aside.write_text(f'{head},\n"versions": [\n{lines}\n]}}\n')
        aside.rename(path)
        return path

    def _files(self, pattern: str) -> Iterator[Path]:
        return (path for place in self._places for path in sorted(place.glob(pattern)))


def _facts(arm: str, seed: int, plan: Plan) -> dict[str, Any]:
    """All that a run's figures depend on, but for the code."""
    settings = config(arm, plan.rate).model_dump(mode="json", include=_PARTS)
    # What trains nothing is the same at any rate and by any recipe.
    trains = arm != "none"
    people = [(one.name, one.system, one.questions, one.complaints, one.hint) for one in PEOPLE]
    asked = _digest([people, [fact.question for fact in FACTS], ANSWERS])
    return {
        "arm": arm,
        "seed": seed,
        "plan": asdict(plan) if trains else {**asdict(plan), "rate": None},
        "sampling": {"temperature": TEMPERATURE, "limit": LIMIT, "persistence": PERSISTENCE},
        "asked": asked,
        "settings": settings if trains else None,
    }


def _record(version: dict[str, Any]) -> dict[str, Any]:
    turns = [
        {"person": person, "question": question, "score": score, "depth": 0}
        for person, question, score in version["turns"]
    ]
    return {"turns": turns, "quality": version["quality"]}


def _digest(of: Any) -> str:
    return sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()


def _commit() -> str | None:
    """Of the code that runs; None outside of git."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found.stdout.strip() or None
