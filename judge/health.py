"""How well judging goes: figures of the judgements made last, for the heartbeat."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.records import Judgement
from judge.votes import agreement

WINDOW = 1000

Figure = float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One judgement and the seconds it took."""

    judgement: Judgement
    seconds: float


class Recorder(Protocol):
    """What is told of each event as it happens, for instance counters."""

    def judged(self, judgement: Judgement, seconds: float) -> None: ...

    def checked(self, said: int, found: int) -> None: ...

    def taught(self, *, done: bool) -> None: ...

    def audited(self, said: int, found: int) -> None: ...


class Health:
    """A window over the last judgements, and over those that explicit feedback can check."""

    def __init__(self, window: int = WINDOW, recorder: Recorder | None = None) -> None:
        self._outcomes: deque[Outcome] = deque(maxlen=window)
        self._checked: deque[tuple[int, int]] = deque(maxlen=window)
        self._audited: deque[tuple[int, int]] = deque(maxlen=window)
        self._recorder = recorder

    def judged(self, judgement: Judgement, seconds: float) -> None:
        self._outcomes.append(Outcome(judgement=judgement, seconds=seconds))
        if self._recorder is not None:
            self._recorder.judged(judgement, seconds)

    def checked(self, said: float, found: float) -> None:
        """Somebody scored a turn `said`; without that word it was judged `found`."""
        pair = sign(said), sign(found)
        self._checked.append(pair)
        if self._recorder is not None:
            self._recorder.checked(*pair)

    def audited(self, said: float, found: float) -> None:
        """A turn that scored `said` was judged `found` by the independent judge."""
        pair = sign(said), sign(found)
        self._audited.append(pair)
        if self._recorder is not None:
            self._recorder.audited(*pair)

    def taught(self, *, done: bool) -> None:
        """A turn with a hint was scored by the teacher, or could not be."""
        if self._recorder is not None:
            self._recorder.taught(done=done)

    def report(self) -> dict[str, Figure]:
        outcomes = tuple(self._outcomes)
        return {
            **figures(outcomes),
            **drift(outcomes),
            **compared("feedback", tuple(self._checked)),
            **compared("audit", tuple(self._audited)),
        }


def figures(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """Shares are of what they are named after; None where there is nothing to share.

    `disagreement` is the mean share of parsed votes beside the most frequent one, `parse_failures`
    the share of answered grading votes that could not be read, `settled_by_rules` the share of
    judgements that a rule made; `voted` counts the judgements with a parsed vote.
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
        "voted": len(known),
        "vote_errors": len(votes) - len(answered),
        "parse_failures": _share(vote["score"] is None for vote in answered),
        "disagreement": _rounded(sum(known) / len(known)) if known else None,
        "ms_p50": percentile(times, 0.5),
        "ms_p95": percentile(times, 0.95),
    }


def drift(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """How far the newer half of the window is from the older one.

    `score_drift` is the difference of the mean scores in [-2, 2], `settled_drift` that of the
    shares settled by rules; None where a half has nothing to compare.
    """
    middle = len(outcomes) // 2
    halves = outcomes[:middle], outcomes[middle:]
    means, shares = [], []
    for half in halves:
        scores = [o.judgement.score for o in half if o.judgement.score is not None]
        means.append(sum(scores) / len(scores) if scores else None)
        shares.append(_share(o.judgement.judge == "rules" for o in half))
    return {"score_drift": _difference(*means), "settled_drift": _difference(*shares)}


def _difference(older: float | None, newer: float | None) -> float | None:
    return None if older is None or newer is None else _rounded(newer - older)


def compared(what: str, pairs: Sequence[tuple[int, int]]) -> dict[str, Figure]:
    """Agreement with explicit feedback, or an audit, as raw share and as Cohen's kappa."""
    return {
        f"{what}_checked": len(pairs),
        f"{what}_agreement": _share(said == found for said, found in pairs),
        f"{what}_kappa": _rounded(kappa(pairs)),
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
