"""Scores per version with intervals, and what training gained over no training.

Intervals are percentile bootstraps over cells (person x question): turns of one cell are drawn
together, so that a person who always asks the same counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.demo.questions import FACTS
from gateway.demo.readings import Readings, Turn

DRAWS = 4000
_SEED = 20

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """`turns` judged first turns, their mean score, 95 % of its bootstrap, mean reply tokens."""

    turns: int
    mean: float | None
    ci95: Interval | None
    tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One version: how it did, and how it came to be. `facts` is a share in [0, 1]."""

    version: int
    score: Score
    facts: float | None
    lag_max: int | None
    swap_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The last versions against the base model.

    `base` pools version 0 with the control arm, `last` the versions from `since` on.
    """

    since: int
    last: Score
    base: Score
    mean: float
    ci95: Interval
    over_version_0: float | None
    over_control: float | None


def judged(turns: Iterable[Turn]) -> list[Turn]:
    """Those that have a score and came from one version whole."""
    return [turn for turn in turns if turn.score is not None and turn.version is not None]


def score(turns: Iterable[Turn]) -> Score:
    scored = judged(turns)
    if not scored:
        return Score(turns=0, mean=None, ci95=None, tokens=None)
    mean, draws = _bootstrap([scored])
    return Score(
        turns=len(scored),
        mean=float(mean[0]),
        ci95=_percentiles(draws[:, 0]),
        tokens=float(np.mean([turn.tokens for turn in scored])),
    )


def rows(readings: Readings) -> list[VersionRow]:
    """One row a version, from the base model on."""
    scored = judged(readings.turns)
    shares = facts_right(readings.facts)
    return [
        VersionRow(
            version=version,
            score=score(turn for turn in scored if turn.version == version),
            facts=shares.get(version),
            lag_max=readings.lag_max.get(version),
            swap_ms=readings.swap_ms.get(version),
        )
        for version in sorted({0, *readings.swap_ms})
    ]


def facts_right(turns: Iterable[Turn]) -> dict[int, float]:
    """The share of fact questions answered right, by version.

    Only versions that answered every question are there; the newest answer to each counts.
    """
    answers: dict[int, dict[str, str]] = {}
    for turn in turns:
        if turn.version is not None:
            answers.setdefault(turn.version, {})[turn.question] = turn.reply
    return {
        version: sum(fact.right(replies[fact.question]) for fact in FACTS) / len(FACTS)
        for version, replies in answers.items()
        if all(fact.question in replies for fact in FACTS)
    }


def last_versions(turns: Sequence[Turn], enough: int) -> list[Turn]:
    """The judged turns of the fewest newest versions that hold at least `enough` of them.

    All turns of trained versions where there are not so many; version 0 is never among them.
    """
    trained = [turn for turn in judged(turns) if turn.version]
    found: list[Turn] = []
    for version in sorted({turn.version or 0 for turn in trained}, reverse=True):
        found += [turn for turn in trained if turn.version == version]
        if len(found) >= enough:
            break
    return found


def gain(readings: Readings, enough: int) -> Gain | None:
    """The last versions minus the base model, or None where one of them has no judged turn."""
    last = last_versions(readings.turns, enough)
    first = [turn for turn in judged(readings.turns) if turn.version == 0]
    control = judged(readings.control)
    base = [*first, *control]
    if not last or not base:
        return None
    means, draws = _bootstrap([last, base])
    return Gain(
        since=min(turn.version or 0 for turn in last),
        last=score(last),
        base=score(base),
        mean=float(means[0] - means[1]),
        ci95=_percentiles(draws[:, 0] - draws[:, 1]),
        over_version_0=_above(last, first),
        over_control=_above(last, control),
    )


def _above(last: Sequence[Turn], others: Sequence[Turn]) -> float | None:
    if not others:
        return None
    means, _ = _bootstrap([last, others], draws=1)
    return float(means[0] - means[1])


def _bootstrap(
    groups: Sequence[Sequence[Turn]], draws: int = DRAWS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means [G] of the groups' scores, and their means [D, G] over redrawn cells.

    The same cells are drawn for all groups. A draw in which a group is empty keeps its mean.
    """
    index: dict[tuple[str, str], int] = {}
    for turn in (turn for group in groups for turn in group):
        index.setdefault(turn.cell, len(index))
    sums = np.zeros((len(index), len(groups)))
    counts = np.zeros((len(index), len(groups)))
    for column, group in enumerate(groups):
        for turn in group:
            sums[index[turn.cell], column] += turn.score or 0.0
            counts[index[turn.cell], column] += 1
    means = sums.sum(axis=0) / counts.sum(axis=0)
    rng = np.random.default_rng(_SEED)
    times = rng.multinomial(len(index), np.full(len(index), 1 / len(index)), size=draws)
    drawn = times @ counts
    return means, np.where(drawn > 0, (times @ sums) / np.maximum(drawn, 1), means)


def _percentiles(draws: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(draws, (2.5, 97.5))
    return float(low), float(high)
