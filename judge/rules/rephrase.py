"""The user asks the same again in other words: the first answer did not do.

A new question about another thing often shares most of its words with the last one (another
country, another year). So the words that carry meaning must nearly all return, and numbers and
names must be the same.
"""

from __future__ import annotations

import re

from judge.rules.base import Rule
from judge.rules.phrases import fold
from judge.verdicts import Evidence, Finding

SIMILAR = 0.75
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_CJK_COMMON = re.compile(
    r"什么|甚么|什麼|怎么样?|怎麼|怎样|如何|请问|請問|请|請|告诉我|告訴我|为什么|為什麼|哪里|哪裡|哪个|哪儿|"
    r"可以|能不能|一下|关于|[的是吗嗎呢了在我你有和与吧啊把给]|"
    r"ください|教えて|について|とは|ですか|ですが|でしょうか|ますか|です|ます|何|なん|どこ|どう|[はがをにでのとへもか]"
)
#: Words that a question may gain or lose without asking for something else.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """
    a an the is are was were be been do does did can could would will should of in on at to for
    from by with and or but it its this that these those i you me my your we what which who whom
    how when where why there here please tell give explain show say know about so just again
    el la los las un una de del en y o que cual como cuando donde por para es son me mi tu puedes
    le les des du et ou que quel quelle comment quand est sont me mon peux
    der die das ein eine den dem des und oder was wie wann wo ist sind mir mein kannst
    """,
    )
)


def _look(evidence: Evidence) -> Finding | None:
    if not evidence.asked or not evidence.answers or evidence.tool_calls:
        return None
    before, after = fold(evidence.asked[:2000]).strip(), fold(evidence.answers[0][:2000]).strip()
    if before == after:
        return Finding(score=-1.0, reason="the user asks the same again, word for word")
    if similarity(before, after) >= SIMILAR:
        return Finding(score=-1.0, reason="the user asks the same again in other words")
    return None


def similarity(before: str, after: str) -> float:
    """Jaccard index of the words that carry meaning; 0 where numbers differ or few are left."""
    first, second = _meaning(before), _meaning(after)
    if min(len(first), len(second)) < 2 or _numbers(before) != _numbers(after):
        return 0.0
    return len(first & second) / len(first | second)


def _meaning(text: str) -> set[str]:
    if _CJK.search(text):
        kept = "".join(_WORD.findall(_CJK_COMMON.sub(" ", text)))
        return {kept[i : i + 2] for i in range(len(kept) - 1)}
    words = (word.removesuffix("'s") for word in _WORD.findall(text))
    return {_stem(word) for word in words if word not in _COMMON}


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s"):
        if len(word) > len(ending) + 3 and word.endswith(ending):
            return word.removesuffix(ending)
    return word


def _numbers(text: str) -> list[str]:
    return sorted(re.findall(r"\d+", text))


REPHRASE = Rule("rephrase", 0.7, _look)
