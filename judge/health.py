"""How well judging goes: figures of the judgements made last, for the heartbeat."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.records import Judgement
from judge.votes import agreement

WINDOW = 1000

Figure = float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One judgement and the seconds it took."""

    judgement: Judgement
    seconds: float


class Health:
    """A window over the last judgements, and over those that explicit feedback can check."""

    def __init__(self, window: int = WINDOW) -> None:
        self._outcomes: deque[Outcome] = deque(maxlen=window)
        self._checked: deque[tuple[int, int]] = deque(maxlen=window)

    def judged(self, judgement: Judgement, seconds: float) -> None:
        self._outcomes.append(Outcome(judgement=judgement, seconds=seconds))

    def checked(self, said: float, found: float) -> None:
        """Somebody scored a turn `said`; without that word it was judged `found`."""
        self._checked.append((sign(said), sign(found)))

    def report(self) -> dict[str, Figure]:
        return {**figures(tuple(self._outcomes)), **against_feedback(tuple(self._checked))}


def figures(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """Shares are of what they are named after; None where there is nothing to share.

    `disagreement` is the mean share of parsed votes beside the most frequent one, `parse_failures`
    the share of answered grading votes that could not be read, `settled_by_rules` the share of
    judgements that a rule made.
    """
    grades = [_grades(outcome.judgement) for outcome in outcomes]
    votes = [vote for group in grades for vote in group]
    answered = [vote for vote in votes if "error" not in vote]
    agreements = [agreement([vote["score"] for vote in group]) for group in grades]
    known = [1 - value for value in agreements if value is not None]
    times = [outcome.seconds * 1e3 for outcome in outcomes]
    return {
        "judgements": len(outcomes),
        "settled_by_rules": _share(o.judgement.judge == "rules" for o in outcomes),
        "scored": _share(o.judgement.score is not None for o in outcomes),
        "hinted": _share(o.judgement.hint is not None for o in outcomes),
        "votes": len(votes),
        "vote_errors": len(votes) - len(answered),
        "parse_failures": _share(vote["score"] is None for vote in answered),
        "disagreement": _rounded(sum(known) / len(known)) if known else None,
        "ms_p50": percentile(times, 0.5),
        "ms_p95": percentile(times, 0.95),
    }


def against_feedback(pairs: Sequence[tuple[int, int]]) -> dict[str, Figure]:
    """Agreement with explicit feedback as raw share and as Cohen's kappa."""
    return {
        "feedback_checked": len(pairs),
        "feedback_agreement": _share(said == found for said, found in pairs),
        "feedback_kappa": _rounded(kappa(pairs)),
    }


def kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Cohen's kappa of two raters, (p_o - p_e) / (1 - p_e), in [-1, 1].

    p_o is the share of equal pairs, p_e what chance would give two raters with these frequencies.
    None without pairs, and where both always say the same one thing (p_e = 1). Cohen 1960.
    """
    if not pairs:
        return None
    total = len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    equal = sum(a == b for a, b in pairs)
    # In whole numbers, so that 1 - p_e is 0 exactly where it is.
    chance = sum(first[label] * second[label] for label in first)
    if chance == total * total:
        return None
    return (equal * total - chance) / (total * total - chance)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of them do not exceed (nearest rank)."""
    if not values:
        return None
    rank = max(1, math.ceil(share * len(values)))
    return round(sorted(values)[rank - 1], 1)


def sign(score: float) -> int:
    return (score > 0) - (score < 0)


def _grades(judgement: Judgement) -> list[Any]:
    return [vote for vote in judgement.votes if vote.get("kind") == "grade"]


def _share(flags: Iterable[bool]) -> float | None:
    found = list(flags)
    return _rounded(sum(found) / len(found)) if found else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
