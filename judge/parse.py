r"""Answers of LLM judges, in the forms that models give them: JSON, `\boxed{ 1 }`, `Score: +1`.

Where a check word is given, an answer without it is no answer, and only what follows it counts.
The last score wins; a last score that is none of -1, 0 and 1 leaves the answer unparsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Longer answers have gone astray; their end is what counts.
ANSWER_LIMIT = 32_768

_NUMBER = r"[\"'`*]*\s*([+\-\u2212\u2013]?\s*\d+(?:\.\d+)?)(?!\d|\.\d|\s*(?:/|%|out of\b))"
_SCORE = re.compile(
    rf"\\boxed\s*\{{\s*{_NUMBER}\s*\}}"
    rf"|(?<![a-z])(?:score|grade|verdict)[\"'`*]*\s*(?:is\b|[:=\uff1a])\s*{_NUMBER}",
    re.IGNORECASE,
)
_BARE = re.compile(rf"\W*?{_NUMBER}\W*")
_IMPROVES = re.compile(
    r"(?<![a-z])improves?[\"'`*]*\s*(?:is\b|[:=])\s*[\"'`*]*\s*(true|false|yes|no)\b", re.IGNORECASE
)
_HINT = re.compile(r"(?<![a-z])hint[\"'`*]*\s*[:=]\s*(.+)\Z", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class HintAnswer:
    """One vote: whether the reply could have been better, and how."""

    improves: bool
    hint: str


def score(text: str, check: str | None = None) -> int | None:
    """The score of an answer, None where it has none."""
    answer = _answer(text, check)
    if answer is None:
        return None
    for found in _objects(text, check, "score"):
        return _whole(found["score"])
    matches = list(_SCORE.finditer(answer))
    if matches:
        last = matches[-1]
        return _whole(last[1] or last[2])
    bare = _BARE.fullmatch(answer.strip())
    return _whole(bare[1]) if bare else None


def hint(text: str, check: str | None = None) -> HintAnswer | None:
    """The vote of an answer, None where it has none."""
    answer = _answer(text, check)
    if answer is None:
        return None
    for found in _objects(text, check, "improves"):
        improves, said = found["improves"], found.get("hint")
        if not isinstance(improves, bool):
            return None
        return HintAnswer(improves, said.strip() if isinstance(said, str) else "")
    improving = list(_IMPROVES.finditer(answer))
    if not improving:
        return None
    words = _HINT.search(answer, improving[-1].end())
    yes = improving[-1][1].casefold() in ("true", "yes")
    return HintAnswer(yes, words[1].strip(" \n\"'`*}") if words and yes else "")


def _answer(text: str, check: str | None) -> str | None:
    """What follows the check word, without what the model thought before it answered."""
    text = _spoken(text)
    if check is None:
        return text
    _, found, rest = text.partition(check)
    return rest if found else None


def _spoken(text: str) -> str:
    return text[-ANSWER_LIMIT:].rpartition("</think>")[2]


def _objects(text: str, check: str | None, key: str) -> list[Mapping[str, Any]]:
    """JSON objects of the answer that have `key` (and the check word), the last one first."""
    text, decoder = _spoken(text), json.JSONDecoder()
    found: list[Mapping[str, Any]] = []
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1  # A brace in prose, or an object that was cut off.
        else:
            if key in value and (check is None or value.get("check") == check):
                found.append(value)
        at = text.find("{", end)
    return found[::-1]


def _whole(value: object) -> int | None:
    """-1, 0 or 1 from a number or its text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = re.sub(r"\s", "", value).replace("\u2212", "-").replace("\u2013", "-")
        try:
            value = float(text)
        except ValueError:
            return None
    if isinstance(value, int | float) and value in (-1, 0, 1):
        return int(value)
    return None
