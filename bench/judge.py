"""`make bench-judge`: how right the rules are on the labelled set, and an LLM where there is one.

A row's `score` is what the rules should come to, `reads` what a judge that reads should say where
the rules rightly say nothing. The rules were made with these rows at hand, so they are right on
all of them; `judge_heldout.jsonl` was written afterwards (`expected`: what people would say), and
no rule was changed for it.

An LLM judges, without the rules, every row with a score that can be told from the conversation, at
the endpoint of `NEXTSTATE_JUDGE__LLM__BASE_URL` and `NEXTSTATE_JUDGE__LLM__MODEL`, or at the
policy's engine with `NEXTSTATE_JUDGE__LLM={}`; without any none is asked. Tables are printed, and
the same goes to `build/bench/judge.json`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.table import Table

from gateway.config import load
from gateway.errors import JudgeError, NextstateError
from gateway.records import FeedbackRecord, FinishReason, Judgement
from judge.config import JudgeConfig, JudgeSettings
from judge.evaluate import RuleJudge
from judge.health import kappa, sign
from judge.lineup import lined_up
from judge.verdicts import Evidence, Judge

_ROOT = Path(__file__).parents[1]
CASES = _ROOT / "tests" / "data" / "judge_cases.jsonl"
HELD_OUT = _ROOT / "tests" / "data" / "judge_heldout.jsonl"
OUT = _ROOT / "build" / "bench" / "judge.json"

_TITLES = {"held_out": "rules, held out"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`expected` is None where people would not agree on a score."""

    language: str
    evidence: Evidence
    expected: float | None

    @property
    def readable(self) -> bool:
        """Whether the score can be told from the conversation alone."""
        seen = bool(self.evidence.next_state) and not self.evidence.feedback
        return self.expected is not None and seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`judgement` None: the judge had nothing to say, or failed."""

    case: Case
    judgement: Judgement | None

    @property
    def score(self) -> float | None:
        return self.judgement.score if self.judgement else None

    @property
    def right(self) -> bool:
        return self.score is not None and self.score == self.case.expected


def read(path: Path = CASES) -> list[Case]:
    return [_case(json.loads(line)) for line in path.read_text().splitlines()]


def _case(row: dict[str, Any]) -> Case:
    request, reply = row["request"], row["reply"]
    nobody = UUID(int=0)
    evidence = Evidence(
        request=({"role": "user", "content": request},)
        if isinstance(request, str)
        else tuple(request),
        reply={"role": "assistant", "content": reply} if isinstance(reply, str) else reply,
        next_state=tuple(row["next"]),
        feedback=tuple(
            FeedbackRecord(id=UUID(int=number), tenant_id=nobody, turn_id=nobody, **said)
            for number, said in enumerate(row.get("feedback", []))
        ),
        finish_reason=FinishReason(row.get("finish", "stop")),
        discarded=row.get("how") == "rolled_back",
    )
    expected = row.get("score", row.get("expected"))
    if expected is None:
        expected = row.get("reads")
    return Case(language=row["lang"], evidence=evidence, expected=expected)


async def ask(judge: Judge, cases: Sequence[Case], at_once: int) -> list[Result]:
    """Every case judged; a judge that fails has nothing to say."""
    places = asyncio.Semaphore(at_once)

    async def one(case: Case) -> Result:
        async with places:
            try:
                return Result(case=case, judgement=await judge.judge(case.evidence))
            except JudgeError:
                return Result(case=case, judgement=None)

    return list(await asyncio.gather(*map(one, cases)))


def figures(results: Sequence[Result]) -> dict[str, Any]:
    """Counts: `settled` have a score, `right` of them the expected one.

    `coverage` is settled / rows, `accuracy` right / settled. `confusion` counts
    `"expected -> score"` by sign; `none` expects or has no score. `kappa` is over the settled rows
    that expect a score.
    """
    settled = [result for result in results if result.score is not None]
    right = sum(result.right for result in settled)
    pairs = [
        (sign(result.case.expected), sign(result.score))
        for result in settled
        if result.case.expected is not None and result.score is not None
    ]
    moves = Counter(f"{_name(one.case.expected)} -> {_name(one.score)}" for one in results)
    return {
        "rows": len(results),
        "settled": len(settled),
        "right": right,
        "coverage": _share(len(settled), len(results)),
        "accuracy": _share(right, len(settled)),
        "kappa": kappa(pairs),
        "confusion": dict(sorted(moves.items())),
    }


def grouped(results: Sequence[Result], *, by_language: bool = False) -> dict[str, dict[str, int]]:
    """`settled` and `right` by the rule that settled, or by the language of the case."""
    found: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.judgement is not None and result.score is not None:
            key = result.case.language if by_language else result.judgement.rule
            found[key or result.judgement.judge].append(result)
    return {
        name: {"settled": len(group), "right": sum(one.right for one in group)}
        for name, group in sorted(found.items())
    }


async def measure(config: JudgeConfig) -> dict[str, Any]:
    """The report. Raises ConfigError."""
    cases = read()
    ruled = await ask(RuleJudge.configured(config), cases, at_once=1)
    unseen = await ask(RuleJudge.configured(config), read(HELD_OUT), at_once=1)
    report: dict[str, Any] = {
        "rows": len(cases),
        "rules": figures(ruled),
        "by_rule": grouped(ruled),
        "by_language": grouped(ruled, by_language=True),
        "held_out": {**figures(unseen), "by_rule": grouped(unseen)},
    }
    if config.llm is not None:
        alone = config.model_copy(update={"line": ("llm",)})
        labelled = [case for case in (*cases, *read(HELD_OUT)) if case.readable]
        async with lined_up(alone) as lineup:
            read_ = await ask(lineup.judges[-1], labelled, config.concurrency)
        report["llm"] = {
            "model": config.llm.model,
            **figures(read_),
            **(lineup.budget.report() if lineup.budget else {}),
        }
    return report


def show(report: dict[str, Any], console: Console) -> None:
    whole = Table("judge", "rows", "settled", "coverage", "right", "accuracy", "kappa")
    for name in ("rules", "held_out", "llm"):
        if found := report.get(name):
            whole.add_row(
                found.get("model", _TITLES.get(name, name)),
                str(found["rows"]), str(found["settled"]),
                _percent(found["coverage"]), str(found["right"]), _percent(found["accuracy"]),
                "" if found["kappa"] is None else f"{found['kappa']:.2f}",
            )  # fmt: skip
    console.print(whole)
    for key, title in (("by_rule", "rule"), ("by_language", "language")):
        table = Table(title, "settled", "right")
        for name, found in report[key].items():
            table.add_row(name, str(found["settled"]), str(found["right"]))
        console.print(table)
    for name in ("rules", "held_out", "llm"):
        if found := report.get(name):
            table = Table(f"{_TITLES.get(name, name)}: expected -> score", "rows")
            for move, count in found["confusion"].items():
                table.add_row(move, str(count))
            console.print(table)


def main() -> int:
    try:
        report = asyncio.run(measure(load(JudgeSettings).judging))
    except NextstateError as error:
        print(f"bench-judge: {error.message}", file=sys.stderr)
        return 1
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(report, indent=2) + "\n")
    show(report, Console())
    print(f"written to {OUT.relative_to(_ROOT)}")
    return 0


def _name(score: float | None) -> str:
    return "none" if score is None else f"{sign(score):+d}" if score else "0"


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    sys.exit(main())
