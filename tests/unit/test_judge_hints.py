from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from gateway.records import FinishReason, Judgement
from judge.config import LlmConfig
from judge.endpoint import Endpoint
from judge.hints import Agreement, Hinter, agreed, trimmed
from judge.parse import HintAnswer
from judge.verdicts import Evidence
from tests.scripted_judge import ScriptedJudge, check_word

NO = HintAnswer(False, "")
SHORT = HintAnswer(True, "Answer in one line.")
LONG = HintAnswer(True, "Answer in one line and name the country.")
TRIVIAL = HintAnswer(True, "Be better")


@pytest.mark.parametrize(
    ("answers", "any_", "majority"),
    [
        ([SHORT, LONG, SHORT], LONG.hint, LONG.hint),
        ([SHORT, NO, NO], SHORT.hint, None),
        ([SHORT, NO], SHORT.hint, None),
        ([SHORT, LONG, NO], LONG.hint, LONG.hint),
        # An answer that could not be read is no vote against.
        ([SHORT, None, None], SHORT.hint, SHORT.hint),
        ([TRIVIAL, TRIVIAL, SHORT], SHORT.hint, SHORT.hint),
        ([TRIVIAL, TRIVIAL, TRIVIAL], None, None),
        ([NO, NO, NO], None, None),
        ([None], None, None),
        ([], None, None),
    ],
)
def test_the_longest_hint_where_enough_want_one(
    answers: list[HintAnswer | None], any_: str | None, majority: str | None
) -> None:
    assert agreed(answers, "any") == any_
    assert agreed(answers, "majority") == majority


def test_a_hint_is_one_line_of_three_sentences_without_control_tokens() -> None:
    assert trimmed("Be  brief.\nName v1.2 first. Then stop! Not this? Nor this.") == (
        "Be brief. Name v1.2 first. Then stop!"
    )
    assert trimmed("\u7b80\u77ed\u3002\u5148\u8bf4\u7b54\u6848\u3002") == (
        "\u7b80\u77ed\u3002\u5148\u8bf4\u7b54\u6848\u3002"
    )
    assert trimmed("Stop<|im_end|>") == "Stop< |im_end| >"
    assert len(trimmed("x" * 5000)) == 600


EVIDENCE = Evidence(
    request=({"role": "user", "content": "Where is Canberra?"},),
    reply={"role": "assistant", "content": "In Australia."},
    next_state=({"role": "user", "content": "In which state of it?"},),
    feedback=(),
    finish_reason=FinishReason.STOP,
)
UNSCORED = Judgement(judge="none", score=None)


def answering(*answers: HintAnswer) -> Callable[[dict[str, Any]], str]:
    left = cycle(answers)

    def script(body: dict[str, Any]) -> str:
        said = next(left)
        return json.dumps({"check": check_word(body), "improves": said.improves, "hint": said.hint})

    return script


async def advised(
    server: ScriptedJudge,
    judgement: Judgement = UNSCORED,
    evidence: Evidence = EVIDENCE,
    agreement: Agreement = "majority",
    **values: Any,
) -> Judgement:
    config = LlmConfig(base_url=server.url, model="m", **{"retries": 0, **values})
    endpoint = Endpoint(config)
    try:
        hinter = Hinter(endpoint=endpoint, config=config, agreement=agreement)
        return await hinter.advised(evidence, judgement)
    finally:
        await endpoint.close()


async def test_votes_agree_on_a_hint_that_joins_the_judgement() -> None:
    scored = Judgement(judge="llm:m", score=-1.0, votes=({"kind": "grade", "score": -1},))
    async with ScriptedJudge(answering(SHORT, LONG, NO)) as server:
        found = await advised(server, scored)
    assert found.hint == LONG.hint
    assert (found.score, found.judge) == (-1.0, "llm:m")
    assert [vote["kind"] for vote in found.votes] == ["grade", "hint", "hint", "hint"]
    assert sorted(str(vote.get("improves")) for vote in found.votes[1:]) == [
        "False",
        "True",
        "True",
    ]
    assert "In which state of it?" in server.requests[0]["messages"][1]["content"]


async def test_agreement_is_configurable() -> None:
    async with ScriptedJudge(answering(SHORT, NO, NO)) as server:
        assert (await advised(server)).hint is None
        assert (await advised(server, agreement="any")).hint == SHORT.hint


@pytest.mark.parametrize(
    ("judgement", "evidence"),
    [
        (Judgement(judge="rules", score=-1.0, hint="Make it shorter."), EVIDENCE),
        (Judgement(judge="rules", score=1.0), EVIDENCE),
        (UNSCORED, replace(EVIDENCE, next_state=())),
    ],
)
async def test_nobody_is_asked_where_no_hint_is_due(
    judgement: Judgement, evidence: Evidence
) -> None:
    async with ScriptedJudge(answering(SHORT)) as server:
        assert await advised(server, judgement, evidence) == judgement
    assert server.requests == []


async def test_a_score_does_not_wait_for_a_hint_that_fails() -> None:
    scored = Judgement(judge="rules", score=-1.0)
    async with ScriptedJudge(lambda _: 500) as server:
        assert await advised(server, scored) == scored
    assert len(server.requests) == 3
