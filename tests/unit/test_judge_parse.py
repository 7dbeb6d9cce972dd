from __future__ import annotations

import json

import pytest

from judge import parse
from judge.parse import HintAnswer

CHECK = "0badcafe"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"\boxed{1}", 1),
        (r"\boxed{ 1 }", 1),
        (r"\boxed{+1}", 1),
        (r"\boxed{ -1 }", -1),
        ("\\boxed{\u22121}", -1),
        (r"So the answer is $\boxed{0}$.", 0),
        ("Score: +1", 1),
        ("score = -1", -1),
        ("The score is 0.", 0),
        ("**Score:** -1", -1),
        ("**Score**: **1**", 1),
        ("Verdict: `1`", 1),
        ("Grade\uff1a-1", -1),
        ("Score: 1.0", 1),
        ("Score: \u22121", -1),
        ('{"score": 1}', 1),
        ('{"score": "-1"}', -1),
        ('```json\n{\n  "why": "it failed",\n  "score": -1\n}\n```', -1),
        ('Here it is: {"why": "a {brace}", "score": 0} done', 0),
        ('{"score": 1} no, rather {"score": -1}', -1),
        (r"Score: 1? No. \boxed{-1}", -1),
        ("first \\boxed{-1}, then score: 0", 0),
        ('<think>score: 1, surely \\boxed{1}</think>{"score": -1}', -1),
        ("<think>score: 1</think>I cannot say.", None),
        ("+1", 1),
        (" -1\n", -1),
        ("0", 0),
        ('{"score": -1, "why": "cut o', -1),
        ("", None),
        ("I cannot say.", None),
        ("Score: 7", None),
        ("Score: 1, no, score: 5", None),
        ("Score: 0.5", None),
        ("Score: 1/10", None),
        ("Score: 10", None),
        ("Score: 1 out of 5", None),
        ('{"score": true}', None),
        ('{"score": null}', None),
        ('{"score": [1]}', None),
        (r"\boxed{}", None),
        ("underscore: 1", None),
        ("{" * 5000, None),
        ("The 1 thing to know", None),
    ],
)
def test_the_score_of_an_answer(text: str, score: int | None) -> None:
    assert parse.score(text) == score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (json.dumps({"check": CHECK, "why": "x", "score": 1}), 1),
        (json.dumps({"score": -1, "check": CHECK}), -1),
        (f"{CHECK}\nScore: +1", 1),
        (rf"check: {CHECK}, \boxed{{ -1 }}", -1),
        (f'{{"answer": {{"check": "{CHECK}", "score": 1}}}}', 1),
        # Without the check word, before it, or with another one, nothing counts.
        ('{"check": "deadbeef", "score": 1}', None),
        ('{"score": 1}', None),
        (r"\boxed{1}", None),
        (rf"\boxed{{1}} {CHECK}", None),
        (f'They wrote {{"score": 1}}. {json.dumps({"check": CHECK, "score": -1})}', -1),
        (f'{json.dumps({"check": CHECK, "score": -1})} {{"check": "x", "score": 1}}', -1),
    ],
)
def test_only_an_answer_with_the_check_word_counts(text: str, score: int | None) -> None:
    assert parse.score(text, CHECK) == score


@pytest.mark.parametrize(
    ("text", "vote"),
    [
        ('{"improves": true, "hint": " Keep it short. "}', HintAnswer(True, "Keep it short.")),
        ('```json\n{"improves": false, "hint": ""}\n```', HintAnswer(False, "")),
        ("Improves: yes\nHint: Name the file first.", HintAnswer(True, "Name the file first.")),
        ("Improves: no\nHint: none", HintAnswer(False, "")),
        ('{"improves": "yes"}', None),
        ('{"improves": true}', HintAnswer(True, "")),
        ("Who knows", None),
    ],
)
def test_the_hint_of_an_answer(text: str, vote: HintAnswer | None) -> None:
    assert parse.hint(text) == vote
    assert parse.hint(text, CHECK) is None
    if vote is not None and text.startswith("{"):
        assert parse.hint(text.replace("{", f'{{"check": "{CHECK}", ', 1), CHECK) == vote
