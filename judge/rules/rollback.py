"""The user discarded the reply: he went back before it and asked something else in its place."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from judge.rules.base import Rule
from judge.rules.phrases import fold
from judge.verdicts import Evidence, Finding

#: Texts at least this alike differ by a slip of the pen.
ALIKE = 0.93
_LIMIT = 2000
_NO_WORD = re.compile(r"[\W_]+")


def _look(evidence: Evidence) -> Finding | None:
    """Blame, unless what was asked instead is the same but for a slip of the pen.

    That says nothing of the reply: its user may not even have read it.
    """
    if not evidence.discarded:
        return None
    if trivial(evidence.asked, "\n".join(evidence.instead)):
        return Finding(score=0.0, reason="the user corrected a slip in his own words")
    return Finding(score=-1.0, reason="the user discarded the reply and asked otherwise")


def trivial(before: str, after: str) -> bool:
    """Whether two texts differ by no more than case, punctuation or a few letters.

    A number or a name that is another one is more than that.
    """
    first, second = fold(before[:_LIMIT]), fold(after[:_LIMIT])
    if _NO_WORD.sub("", first) == _NO_WORD.sub("", second):
        return True
    if re.findall(r"\d+", first) != re.findall(r"\d+", second):
        return False
    return (
        SequenceMatcher(None, first, second, autojunk=False).ratio() >= ALIKE
        and abs(len(first.split()) - len(second.split())) <= 1
    )


ROLLED_BACK = Rule("rolled_back", 0.6, _look)
