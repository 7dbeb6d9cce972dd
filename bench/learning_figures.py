"""Curves, areas below them and what is drawn of both.

Only first turns count: later ones have seen a complaint. Version 0 is pooled with the control arm,
which never left it. Intervals are percentile bootstraps over cells (person x question): turns of
one cell are drawn together, whatever the seed and the version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

DRAWS = 4000
_SEED = 20
_COLOURS = {
    "none": "#8a8a8a", "binary": "#1f5fa8", "opd": "#2a8f5b", "combined": "#c7641b",
    "openclaw": "#8a3ca0",
}  # fmt: skip

#: Of one seed: records by version.
Seed = Sequence[Mapping[str, Any]]
Cells = list[tuple[tuple[str, str], int, float]]


@dataclass(frozen=True, slots=True)
class Area:
    """The mean score below a curve, in [-1, 1], and 95 % of its bootstrap."""

    low: float
    mean: float
    high: float


def cells(records: Seed, control: Seed | None) -> Cells:
    """(cell, version, score) of every first turn; those of the control are version 0's."""
    found = []
    for version, record in enumerate(records):
        if version or control is None:
            found += [(cell, version, score) for cell, score in first_turns(record)]
    for record in control or ():
        found += [(cell, 0, score) for cell, score in first_turns(record)]
    return found


def first_turns(record: Mapping[str, Any]) -> list[tuple[tuple[str, str], float]]:
    return [
        ((turn["person"], turn["question"]), turn["score"])
        for turn in record["turns"]
        if turn["depth"] == 0
    ]


def curve(of: Cells) -> list[float]:
    """The mean score of each version."""
    last = max(version for _, version, _ in of)
    return [fmean(score for _, at, score in of if at == version) for version in range(last + 1)]


def height(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """The area below curves [..., V] by trapezoids, over its width: a mean score [...]."""
    if curves.shape[-1] == 1:
        return curves[..., 0]
    found: NDArray[np.float64] = (curves[..., 1:] + curves[..., :-1]).mean(axis=-1) / 2
    return found


def area(of: Cells, draws: int = DRAWS) -> Area:
    """Of all seeds together. A draw in which a version has no turn keeps its mean."""
    names = {cell: place for place, cell in enumerate(sorted({cell for cell, _, _ in of}))}
    shape = (len(names), max(version for _, version, _ in of) + 1)
    sums, counts = np.zeros(shape), np.zeros(shape)
    for cell, version, score in of:
        sums[names[cell], version] += score
        counts[names[cell], version] += 1
    means = sums.sum(axis=0) / counts.sum(axis=0)
    rng = np.random.default_rng(_SEED)
    times = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    drawn = times @ counts
    curves = np.where(drawn > 0, (times @ sums) / np.maximum(drawn, 1), means)
    low, high = np.percentile(height(curves), (2.5, 97.5))
    return Area(float(low), float(height(means)), float(high))


def arm(seeds: Mapping[int, Seed], controls: Mapping[int, Seed]) -> dict[str, Any]:
    """What is reported of an arm: a curve a seed, the area, and quality a version."""
    pooled = {seed: cells(records, controls.get(seed)) for seed, records in seeds.items()}
    found = area([one for of in pooled.values() for one in of])
    quality = [[record["quality"] for record in records] for records in seeds.values()]
    return {
        "seeds": [curve(of) for of in pooled.values()],
        "auc": [found.low, found.mean, found.high],
        **{
            name: [fmean(one[name] for one in at) for at in zip(*quality, strict=True)]
            for name in ("facts_right", "answer_logprob")
        },
    }


def picture(arms: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Scores above, facts and answers below, by version."""
    figure = Figure(figsize=(8, 7), layout="constrained")
    scores, facts, answers = figure.subplots(
        3, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1, 1]}
    )
    for name, found in arms.items():
        colour = _COLOURS[name]
        for one in found["seeds"]:
            scores.plot(one, color=colour, alpha=0.25, lw=1)
        mean = np.mean(np.array(found["seeds"]), axis=0)
        low, middle, high = found["auc"]
        label = f"{name}: {middle:.2f} [{low:.2f}, {high:.2f}]"
        scores.plot(mean, color=colour, marker="o", label=label)
        facts.plot(found["facts_right"], color=colour)
        answers.plot(found["answer_logprob"], color=colour)
    scores.set_ylim(-1.05, 1.05)
    scores.set_ylabel("score of first turns")
    scores.legend(frameon=False, fontsize="small", title="area below, 95 %")
    facts.set_ylim(0, 1.05)
    facts.set_ylabel("facts right")
    answers.set_ylabel("answers, nats")
    answers.set_xlabel("policy version")
    answers.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (scores, facts, answers):
        axes.grid(visible=True, alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
