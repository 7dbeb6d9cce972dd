from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import JudgeError
from gateway.records import FinishReason, Judgement, new_id
from gateway.store.judged import JudgedTurn
from judge.config import JudgeConfig
from judge.evaluate import RuleJudge
from judge.replay import Replayed, difference, replay
from judge.verdicts import Evidence


def judged(answer: str = "Thanks!", score: float | None = 1.0, **values: Any) -> JudgedTurn:
    return JudgedTurn(
        **{
            "turn_id": new_id(), "session_id": new_id(),
            "request": ({"role": "user", "content": "Where is Canberra?"},),
            "reply": {"role": "assistant", "content": "In Australia."},
            "next_state": ({"role": "user", "content": answer},), "feedback": (),
            "finish_reason": FinishReason.STOP, "judge": "rules", "rule": "thanks",
            "score": score, "hint": None, **values,
        }
    )  # fmt: skip


def pair(old: float | None, new: float | None) -> Replayed:
    return Replayed(turn=judged(score=old), now=Judgement(judge="x", score=new))


def test_the_difference_between_then_and_now() -> None:
    replayed = [
        pair(1.0, 1.0), pair(1.0, 1.0), pair(-1.0, -1.0), pair(1.0, -1.0), pair(1.0, -1.0),
        pair(None, -1.0), pair(None, None),
        Replayed(turn=judged(), now=None, error="away"),
    ]  # fmt: skip
    assert difference(replayed) == {
        "turns": 8,
        "failed": 1,
        "same": 4,
        "changed": 3,
        "from_to": {"1 -> -1": 2, "none -> -1": 1},
        "mean_before": pytest.approx(3 / 5),
        "mean_now": pytest.approx(-1 / 5),
        # Of five: equal 3/5; by chance 4/5 * 2/5 + 1/5 * 3/5 = 11/25; (15 - 11) / (25 - 11).
        "kappa": pytest.approx(4 / 14),
    }


def test_nothing_to_compare() -> None:
    found = difference([pair(None, 1.0)])
    assert (found["mean_before"], found["mean_now"], found["kappa"]) == (None, None, None)
    assert difference([])["turns"] == 0


async def test_turns_are_judged_again_in_their_order_and_failures_stay_alone() -> None:
    class Touchy:
        name = "touchy"

        async def judge(self, evidence: Evidence) -> Judgement | None:
            if "refuse" in evidence.answers:
                raise JudgeError("no answer to be had")
            if "crash" in evidence.answers:
                raise KeyError("bug")
            return None

    turns = [judged("refuse"), judged(), judged("crash"), judged("That's wrong.")]
    found = await replay(turns, [Touchy(), RuleJudge()], JudgeConfig(concurrency=2))
    assert [one.turn for one in found] == turns
    assert [one.error for one in found] == ["no answer to be had", None, "KeyError: 'bug'", None]
    assert [one.changed for one in found] == [False, False, False, True]
    assert found[3].now is not None
    assert found[3].now.rule == "correction"
