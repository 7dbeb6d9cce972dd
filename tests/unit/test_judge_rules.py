"""Every labelled turn, and what the table cannot say about the rules."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gateway.records import FinishReason
from judge.evaluate import RuleJudge, evaluate
from judge.rules import RULES
from judge.rules.lexicon import LEXICONS
from judge.rules.rephrase import similarity
from judge.rules.rollback import trivial
from judge.rules.tools import error_in
from judge.verdicts import ToolResult
from tests.unit.judge_cases import evidence, rows

CASES = rows()


def _name(row: dict[str, Any]) -> str:
    last = row["next"][-1].get("content") if row["next"] else ""
    return re.sub(r"\W+", "_", f"{row['lang']}_{last}"[:48])


@pytest.mark.parametrize("row", CASES, ids=[f"{i}-{_name(row)}" for i, row in enumerate(CASES)])
async def test_a_labelled_turn_is_judged_as_labelled(row: dict[str, Any]) -> None:
    judgement = await evaluate([RuleJudge()], evidence(row))
    assert (judgement.score, judgement.rule) == (row["score"], row["rule"])


def test_the_labelled_set_covers_every_rule_language_and_score() -> None:
    assert len(CASES) >= 300
    by_rule = Counter(row["rule"] for row in CASES)
    assert {rule.name for rule in RULES} <= set(by_rule)
    languages = {(row["lang"], row["rule"]) for row in CASES}
    for lexicon in LEXICONS:
        for intent in ("thanks", "praise", "moves_on", "redo", "correction"):
            assert (lexicon.name, intent) in languages
    assert sum(row["lang"] == "injection" for row in CASES) >= 20


def test_rules_have_unlike_names_and_confidences_in_range() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(0 < rule.confidence <= 1 for rule in RULES)
    confidence = {rule.name: rule.confidence for rule in RULES}
    assert confidence["moves_on"] < confidence["thanks"] < confidence["feedback"]


async def test_tool_text_never_earns_a_positive_score() -> None:
    """Whatever praises a reply when a user says it does nothing in a tool's mouth."""
    praising = [row for row in CASES if row["score"] == 1 and row["rule"] != "feedback"]
    assert len(praising) > 50
    for row in praising:
        found = evidence(row)
        said = tuple({**message, "role": "tool"} for message in found.next_state)
        judgement = await evaluate([RuleJudge()], replace(found, next_state=said))
        assert judgement.score in (0, None)


async def test_no_cut_off_reply_earns_a_positive_score_from_words() -> None:
    for row in CASES:
        if row["rule"] == "feedback":
            continue
        for reason in (FinishReason.LENGTH, FinishReason.ABORT):
            found = replace(evidence(row), finish_reason=reason)
            judgement = await evaluate([RuleJudge()], found)
            assert judgement.score is None or judgement.score <= 0


@pytest.mark.parametrize(
    "text",
    ["哈" * 4000, "ok " * 2000, "so really just " * 400, "noch etwas " * 500, "thanks for " * 500,
     "\"" * 3000, "(" * 4000, "a, " * 2000, "<system-reminder>" * 300, "谢谢你的帮助" * 500 + "x",
     "no " * 2000, "```" * 1001, "very very " * 500 + "!"],
)  # fmt: skip
async def test_hostile_text_is_judged_without_getting_stuck(text: str) -> None:
    for role in ("user", "tool"):
        row = {**CASES[0], "next": [{"role": role, "content": text}]}
        await evaluate([RuleJudge()], evidence(row))


def test_a_long_message_counts_only_by_its_first_sentence() -> None:
    from judge.rules.phrases import sentences

    tail = "Here is the log. " + "word " * 100
    assert len(sentences("That failed. It is wrong. " + tail)) == 1
    assert len(sentences("That failed. It is wrong. Go on. More.")) == 3


def test_quotations_and_code_are_not_the_users_own_words() -> None:
    from judge.rules.phrases import sentences

    text = "He said \u201cthat is wrong\u201d about `thanks`.\n> too long\n```\nredo\n```"
    words = " ".join(clause.text for sentence in sentences(text) for clause in sentence)
    assert words.startswith("he said")
    assert not re.search("wrong|thanks|too long|redo", words)


def test_similarity_is_the_jaccard_index_of_meaningful_words() -> None:
    # {sort, list, python} and {sort, python, list, fast}: three of four.
    assert similarity("how do i sort a list in python", "sort a python list fast") == 0.75
    assert similarity("population of paris in 2020", "population of paris in 2021") == 0
    assert similarity("hello", "hello") == 0


@pytest.mark.parametrize(
    ("asked", "said", "rule"),
    [
        ("How do I install Python on Ubuntu?", "Can you show how to install Python on Ubuntu",
         "rephrase"),
        ("日本の首都の人口を教えてください", "日本の首都の人口は何ですか", "rephrase"),
        ("请告诉我北京的人口", "北京人口是什么", "rephrase"),
        ("Comment installer Python sur Ubuntu ?",
         "Peux-tu me dire comment installer Python sur Ubuntu ?", "rephrase"),
        ("Wie viele Einwohner hat die Stadt Bern in der Schweiz?",
         "Wie viele Einwohner in der Stadt Bern, Schweiz?", "rephrase"),
        ("¿Cuál es la población de la ciudad de Quito en Ecuador?",
         "¿Qué población tiene la ciudad de Quito, Ecuador?", "rephrase"),
        ("The capital?", "No, the capital is Canberra.", "denial"),
        ("首都?", "不是, 首都是堪培拉。", "denial"),
        ("¿La capital?", "No, la capital es Canberra.", "denial"),
        ("La capitale ?", "Non, la capitale est Canberra.", "denial"),
        ("Die Hauptstadt?", "Nein, die Hauptstadt ist Canberra.", "denial"),
        ("首都は?", "いいえ、首都はキャンベラです。", "denial"),
    ],
)  # fmt: skip
async def test_asking_again_and_a_plain_no_are_heard_in_each_language(
    asked: str, said: str, rule: str
) -> None:
    row = {"request": asked, "reply": "Sydney.", "next": [{"role": "user", "content": said}]}
    judgement = await evaluate([RuleJudge()], evidence(row))
    assert (judgement.score, judgement.rule) == (-1, rule)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Process exited with code 2", "exit code 2"),
        ('{"status": "503"}', "HTTP status 503"),
        ("HTTP/2 418", "HTTP status 418"),
        ("Command timed out after 5 s", "time-out"),
        ('{"result": {"metadata": {"exit_code": 9}}}', "exit code 9"),
        ("{not json", None),
        ("[" * 100_000, None),
        ('{"code": true}', None),
        ("Exit code: 0", None),
    ],
)
def test_why_a_tool_result_is_an_error(text: str, reason: str | None) -> None:
    assert error_in(ToolResult(text=text)) == reason


def test_a_slip_of_the_pen_is_told_from_another_question() -> None:
    assert trivial("What is the captial of France?", "what is the capital of France")
    assert trivial("Sort it", "Sort it!!")
    assert not trivial("Sum of 1 to 10", "Sum of 1 to 11")
    assert not trivial("Translate it", "Translate it and check the grammar")
    assert not trivial("", "Write a poem")


async def test_words_in_place_of_others_are_no_answer_to_the_reply() -> None:
    row = next(row for row in CASES if row.get("how") == "rolled_back")
    for words in ("Thanks, perfect!", "That's wrong.", "Please do it again."):
        instead = {**row, "next": [{"role": "user", "content": words}]}
        judgement = await evaluate([RuleJudge()], evidence(instead))
        assert (judgement.score, judgement.rule) == (-1, "rolled_back")
        assert judgement.confidence == 0.6
        assert judgement.hint is None
        # Without the rule nothing else takes them for an answer.
        others = RuleJudge(rules=tuple(rule for rule in RULES if rule.name != "rolled_back"))
        assert (await evaluate([others], evidence(instead))).score is None


async def test_every_parallel_result_is_looked_at() -> None:
    row = next(row for row in CASES if row["lang"] == "tool")
    fine = {"role": "tool", "content": "ok"}
    for place in range(5):
        following = [fine] * 5
        following[place] = {"role": "tool", "content": "Error: no"}
        judgement = await evaluate([RuleJudge()], evidence({**row, "next": following}))
        assert judgement.rule == "tool_error"
        assert judgement.reason == f"error message (result {place + 1} of 5)"
