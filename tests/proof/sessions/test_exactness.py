"""200 sessions of 10 turns with the real engine: every stored token is the engine's.

Parts of 20 sessions; a part that is done is not done again. The last test adds them up and prints
what was found, also into `build/proof/sessions/exactness.json`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.proof.sessions.audit import TOLERANCE, Findings
from tests.proof.sessions.plan import plan
from tests.proof.sessions.stage import proved

SESSIONS, TURNS, PARTS, DAMAGED = 200, 10, 10, 12

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(3600)]

Say = Callable[[str], None]
Prove = Callable[..., Awaitable[Findings]]


@pytest.fixture
def prove(talker: Path, talking_url: str, database_url: str, tmp_path: Path) -> Prove:
    return partial(proved, database_url, talker, talking_url, tmp_path)


@pytest.mark.parametrize("part", range(PARTS))
async def test_every_token_is_the_engines(
    part: int, progress: Path, prove: Prove, say: Say
) -> None:
    done = progress / f"exactness-{part}.json"
    if not done.exists():
        numbers = range(part * SESSIONS // PARTS, (part + 1) * SESSIONS // PARTS)
        started = time.monotonic()
        plans = [plan(number, TURNS) for number in numbers]
        found = await prove(plans)
        _keep(done, found, numbers, started, say)
    found = _read(done)
    assert (found.silent, found.wrong) == ([], [])
    assert found.counts["turns exact to the byte"] == found.counts["turns stored"]


async def test_no_damage_on_the_way_is_silent(progress: Path, prove: Prove, say: Say) -> None:
    done = progress / "exactness-damaged.json"
    if not done.exists():
        numbers = range(SESSIONS, SESSIONS + DAMAGED)
        started = time.monotonic()
        plans = [plan(number, TURNS) for number in numbers]
        found = await prove(plans, damaged=True)
        _keep(done, found, numbers, started, say)
    found = _read(done)
    assert (found.silent, found.wrong) == ([], [])
    assert found.counts["damaged turns that say so"] > DAMAGED


def test_the_sum_of_all_parts(progress: Path, say: Say) -> None:
    whole = Findings()
    for part in range(PARTS):
        whole.add(_read(progress / f"exactness-{part}.json"))
    hurt = _read(progress / "exactness-damaged.json")
    told = {"sessions": whole.plain(), "damaged": hurt.plain(), "tolerance": TOLERANCE}
    (progress.parent / "exactness.json").write_text(json.dumps(told, indent=1))
    say(_table(whole, f"{SESSIONS} sessions x {TURNS} turns with the real engine"))
    say(_table(hurt, "replies damaged between engine and gateway"))
    assert (whole.counts["sessions"], hurt.counts["sessions"]) == (SESSIONS, DAMAGED)
    assert whole.counts["turns stored"] >= SESSIONS * TURNS
    assert len(whole.dialects) == 4
    for seen in ("replies with several calls", "replies with reasoning", "retries"):
        assert whole.counts[seen] > 0, seen
    assert whole.finishes.keys() >= {"stop", "length", "tool_calls"}


def _keep(done: Path, found: Findings, numbers: range, started: float, say: Say) -> None:
    took = time.monotonic() - started
    say(
        f"\nsessions {numbers.start} to {numbers.stop - 1}: {took:.0f} s, "
        f"{found.counts['turns stored']} turns, {len(found.silent)} silent mismatches, "
        f"{len(found.wrong)} wrong"
    )
    for problem in [*found.silent, *found.wrong][:10]:
        say(f"  {problem}")
    if not (found.silent or found.wrong):
        done.write_text(json.dumps(found.plain()))
    assert (found.silent, found.wrong) == ([], [])


def _read(path: Path) -> Findings:
    values: dict[str, Any] = json.loads(path.read_text())
    return Findings(
        **{
            name: Counter(value) if isinstance(value, dict) else value
            for name, value in values.items()
        }
    )


def _table(found: Findings, title: str) -> str:
    lines = ["", title, ""]
    lines += [f"  {count:>9,}  {name}" for name, count in sorted(found.counts.items())]
    for name in ("dialects", "finishes", "untrainable", "branches"):
        lines.append(f"  {name}:")
        counts: Counter[str] = getattr(found, name)
        lines += [f"    {count:>7,}  {value}" for value, count in counts.most_common()]
    lines += [
        f"  {len(found.silent):>9,}  silent mismatches",
        f"  {found.worst_rescore:>9.2g}  nats off at most, scored again by the engine",
        f"  {found.worst_reference:>9.2g}  nats off at most, scored by transformers",
        f"  {TOLERANCE:>9.2g}  nats allowed",
    ]  # fmt: skip
    return "\n".join(lines)
