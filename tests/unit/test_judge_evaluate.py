from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from gateway.config import load
from gateway.errors import ConfigError
from gateway.records import FeedbackRecord, FinishReason, Judgement
from judge.config import JudgeConfig, JudgeSettings
from judge.evaluate import RuleJudge, evaluate
from judge.rules import Rule
from judge.verdicts import TRUNCATED, Evidence, Finding


def evidence(answer: str = "", *feedback: tuple[str, float, str], finish: str = "stop") -> Evidence:
    return Evidence(
        request=({"role": "user", "content": "Where is Canberra?"},),
        reply={"role": "assistant", "content": "In Australia."},
        next_state=({"role": "user", "content": answer},) if answer else (),
        feedback=tuple(
            FeedbackRecord(
                id=UUID(int=number), tenant_id=UUID(int=0), turn_id=UUID(int=0),
                source=source, score=score, text=text,
            )
            for number, (source, score, text) in enumerate(feedback)
        ),
        finish_reason=FinishReason(finish),
    )  # fmt: skip


async def test_feedback_of_several_sources_is_averaged_the_latest_of_each() -> None:
    found = evidence(
        "Thanks", ("user", 1.0, ""), ("env", 0.5, ""), ("user", -1.0, "The date is off."),
        ("expert", 0.2, ""),
    )  # fmt: skip
    judgement = await evaluate([RuleJudge()], found)
    # The mean of the latest three: minus one, a half and a fifth.
    assert judgement.score == pytest.approx(-0.1)
    assert (judgement.rule, judgement.confidence) == ("feedback", 1.0)
    assert judgement.hint == "The date is off."
    assert judgement.votes == ()


async def test_the_users_own_correction_is_the_hint() -> None:
    judgement = await evaluate([RuleJudge()], evidence("Please  make it\nshorter."))
    assert judgement.hint == "Please make it shorter."
    assert (await evaluate([RuleJudge()], evidence("Wrong."))).hint is None
    assert (await evaluate([RuleJudge()], evidence("Thanks!"))).hint is None
    long = await evaluate([RuleJudge()], evidence("That's wrong. " + "x" * 5000))
    assert long.hint is not None
    assert len(long.hint) == 400


async def test_nothing_said_is_no_score_rather_than_a_bad_one() -> None:
    judgement = await evaluate([RuleJudge()], evidence("And Vienna?"))
    assert (judgement.judge, judgement.score, judgement.rule) == ("none", None, None)


async def test_thanks_that_a_reply_asked_for_tell_nothing_to_any_judge() -> None:
    class Pleased:
        name = "pleased"

        async def judge(self, _: Evidence) -> Judgement:
            return Judgement(judge=self.name, score=1.0)

    begs = {"role": "assistant", "content": "In Australia. Please say thanks."}
    asked = replace(evidence("Thanks!"), reply=begs)
    judgement = await evaluate([RuleJudge(), Pleased()], asked)
    assert (judgement.score, judgement.rule) == (0, "solicited")
    # What blames stands all the same, and thanks of one's own accord too.
    blamed = replace(evidence("Thanks, but that's wrong."), reply=begs)
    assert (await evaluate([RuleJudge(), Pleased()], blamed)).score == -1
    assert (await evaluate([RuleJudge(), Pleased()], evidence("Thanks!"))).rule == "thanks"


async def test_a_cut_off_reply_is_not_scored_as_complete() -> None:
    judgement = await evaluate([RuleJudge()], evidence("Thanks!", finish="length"))
    assert (judgement.score, judgement.rule) == (None, TRUNCATED)
    assert judgement.reason == "the reply is not complete (length); thanks does not count"
    blamed = await evaluate([RuleJudge()], evidence("That's wrong.", finish="abort"))
    assert blamed.score == -1


async def test_only_the_named_rules_settle() -> None:
    only = RuleJudge.configured(JudgeConfig(settling_rules=("correction",)))
    assert (await evaluate([only], evidence("Thanks!"))).score is None
    assert (await evaluate([only], evidence("That's wrong."))).score == -1


async def test_weights_replace_confidence_and_zero_turns_a_rule_off() -> None:
    config = JudgeConfig(rule_weights={"thanks": 0.4, "praise": 0.0})
    judge = RuleJudge.configured(config)
    assert (await evaluate([judge], evidence("Thanks!"))).confidence == 0.4
    assert (await evaluate([judge], evidence("Perfect!"))).score is None
    strict = RuleJudge.configured(JudgeConfig(rule_weights={"thanks": 0.4}, min_confidence=0.5))
    assert (await evaluate([strict], evidence("Thanks!"))).score is None
    assert (await evaluate([strict], evidence("Perfect!"))).score == 1


@pytest.mark.parametrize(
    "config", [JudgeConfig(settling_rules=("thank",)), JudgeConfig(rule_weights={"thank": 1.0})]
)
def test_an_unknown_rule_is_a_config_error(config: JudgeConfig) -> None:
    with pytest.raises(ConfigError, match="no rule named thank;"):
        RuleJudge.configured(config)


async def test_the_first_judge_with_an_opinion_decides() -> None:
    class Silent:
        name = "silent"

        async def judge(self, evidence: Evidence) -> Judgement | None:
            return None

    class Sure:
        name = "sure"

        async def judge(self, evidence: Evidence) -> Judgement | None:
            return Judgement(judge=self.name, score=0.0)

    judgement = await evaluate([Silent(), Sure(), RuleJudge()], evidence("Thanks!"))
    assert (judgement.judge, judgement.score) == ("sure", 0)


async def test_rules_are_tried_in_order_and_the_first_finding_wins() -> None:
    asked: list[str] = []

    def rule(name: str, score: float | None) -> Rule:
        def look(_: Evidence) -> Finding | None:
            asked.append(name)
            return None if score is None else Finding(score=score, reason=name)

        return Rule(name, 0.5, look)

    judge = RuleJudge(rules=(rule("a", None), rule("b", 0.0), rule("c", 1.0)))
    judgement = await evaluate([judge], evidence("x"))
    assert (asked, judgement.rule, judgement.score) == (["a", "b"], "b", 0.0)


def test_settings_are_a_section_and_refuse_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXTSTATE_JUDGE__CONCURRENCY", "3")
    settings = load(JudgeSettings, judge={"lease_s": 9})
    assert (settings.judge.concurrency, settings.judge.lease_s) == (3, 9)
    with pytest.raises(ConfigError, match=r"judge\.lease"):
        load(JudgeSettings, judge={"lease": 9})
    with pytest.raises(ConfigError, match=r"rule_weights\.thanks"):
        load(JudgeSettings, judge={"rule_weights": {"thanks": 2}})
