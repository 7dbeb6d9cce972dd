from __future__ import annotations

import json

import pytest

from bench import judge as bench
from gateway.records import FinishReason, Judgement
from judge.config import JudgeConfig
from judge.verdicts import Evidence
from tests.scripted_judge import ScriptedJudge, grading

EVIDENCE = Evidence(
    request=(),
    reply={"role": "assistant", "content": "x"},
    next_state=(),
    feedback=(),
    finish_reason=FinishReason.STOP,
)


def result(
    expected: float | None, score: float | None, rule: str | None = "thanks", language: str = "en"
) -> bench.Result:
    case = bench.Case(language=language, evidence=EVIDENCE, expected=expected)
    return bench.Result(case=case, judgement=Judgement(judge="rules", score=score, rule=rule))


RESULTS = [
    result(1, 1), result(1, 1, language="de"), result(-1, 1), result(-1, -1, "redo"),
    result(0.5, 0.5, "feedback"), result(None, 1), result(0, None, None), result(None, None, None),
]  # fmt: skip


def test_figures_of_a_judge() -> None:
    assert bench.figures(RESULTS) == {
        "rows": 8,
        "settled": 6,
        "right": 4,
        "coverage": 0.75,
        "accuracy": 0.6667,
        # Of five: equal 4/5; by chance 3/5 * 4/5 + 2/5 * 1/5 = 14/25; (20 - 14) / (25 - 14).
        "kappa": pytest.approx(6 / 11),
        "confusion": {
            "+1 -> +1": 3, "-1 -> +1": 1, "-1 -> -1": 1, "0 -> none": 1, "none -> +1": 1,
            "none -> none": 1,
        },
    }  # fmt: skip
    assert bench.figures([])["accuracy"] is None


def test_figures_by_rule_and_language() -> None:
    assert bench.grouped(RESULTS) == {
        "feedback": {"settled": 1, "right": 1},
        "redo": {"settled": 1, "right": 1},
        "thanks": {"settled": 4, "right": 2},
    }
    assert bench.grouped(RESULTS, by_language=True) == {
        "de": {"settled": 1, "right": 1},
        "en": {"settled": 5, "right": 3},
    }


async def test_the_rules_meet_what_is_wanted_of_them() -> None:
    report = await bench.measure(JudgeConfig())
    assert report["rows"] >= 300
    assert report["rules"]["settled"] >= 0.55 * report["rows"]
    assert report["rules"]["right"] >= 0.9 * report["rules"]["settled"]
    assert sum(one["settled"] for one in report["by_rule"].values()) == report["rules"]["settled"]
    assert "llm" not in report
    # Rows that no rule was made for.
    unseen = report["held_out"]
    assert unseen["rows"] >= 100
    assert unseen["settled"] >= 0.55 * unseen["rows"]
    assert unseen["right"] >= 0.9 * unseen["settled"]


async def test_an_llm_judges_the_rows_that_can_be_read() -> None:
    asked = [case for case in (*bench.read(), *bench.read(bench.HELD_OUT)) if case.readable]
    async with ScriptedJudge(grading(-1)) as server:
        llm = {"base_url": server.url, "model": "m", "votes": 1}
        report = await bench.measure(JudgeConfig(llm=llm))
    found = report["llm"]
    assert found["rows"] == len(asked) == len(server.requests)
    assert found["right"] == sum(case.expected == -1 for case in asked)
    assert found["tokens_today"] == 110 * len(asked)
    assert json.loads(json.dumps(report)) == report
