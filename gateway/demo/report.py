"""What is left of a run: `report.json` and `report.png`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gateway.demo.claims import Claim
from gateway.demo.measure import Gain, Score, VersionRow
from gateway.demo.users import Tally

_BLUE, _GREY, _ORANGE = "#1f5fa8", "#8a8a8a", "#c7641b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run in numbers. `wall_s` from the moment the stack was up."""

    rows: Sequence[VersionRow]
    control: Score
    gain: Gain | None
    claims: Sequence[Claim]
    tally: Tally
    wall_s: float

    def as_json(self) -> dict[str, Any]:
        return {
            "versions": [
                {
                    "version": row.version,
                    "turns": row.score.turns,
                    "mean_score": row.score.mean,
                    "ci95": row.score.ci95,
                    "facts_right": row.facts,
                    "reply_tokens": row.score.tokens,
                    "version_lag_max": row.lag_max,
                    "swap_ms": row.swap_ms,
                }
                for row in self.rows
            ],
            "control": {
                "turns": self.control.turns,
                "mean_score": self.control.mean,
                "ci95": self.control.ci95,
            },
            "gain": None if self.gain is None else asdict(self.gain),
            "claims": [asdict(claim) for claim in self.claims],
            "requests": self.tally.requests,
            "failed_requests": self.tally.failed,
            "wall_s": self.wall_s,
        }

    def write(self, out: Path) -> None:
        """Write both files into `out`. Raises OSError."""
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_rounded(self.as_json()), indent=2, allow_nan=False)
        (out / "report.json").write_text(text + "\n")
        self.figure().savefig(out / "report.png", dpi=120)

    def figure(self) -> Figure:
        """Mean score a version with its interval, the control's band, and the facts below."""
        figure = Figure(figsize=(8, 5.2), layout="constrained")
        scores, facts = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1]})
        shown = [row for row in self.rows if row.score.mean is not None and row.score.ci95]
        if self.control.mean is not None and self.control.ci95:
            scores.axhspan(*self.control.ci95, color=_GREY, alpha=0.22, lw=0)
            scores.axhline(self.control.mean, color=_GREY, lw=1.2, ls="--", label="control arm")
        if shown:
            means = [row.score.mean or 0.0 for row in shown]
            spans = [row.score.ci95 or (0.0, 0.0) for row in shown]
            scores.errorbar(
                [row.version for row in shown],
                means,
                yerr=[
                    [mean - low for mean, (low, _) in zip(means, spans, strict=True)],
                    [high - mean for mean, (_, high) in zip(means, spans, strict=True)],
                ],
                color=_BLUE,
                marker="o",
                capsize=3,
                label="first turns, mean score and 95 % interval",
            )
        scores.set_ylim(-1.05, 1.05)
        scores.set_ylabel("score")
        scores.grid(visible=True, alpha=0.3)
        if scores.get_legend_handles_labels()[0]:
            scores.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
        asked = [row for row in self.rows if row.facts is not None]
        facts.plot(
            [row.version for row in asked],
            [row.facts or 0.0 for row in asked],
            color=_ORANGE,
            marker="s",
        )
        facts.set_ylim(0, 1.05)
        facts.set_ylabel("facts right")
        facts.set_xlabel("policy version")
        facts.grid(visible=True, alpha=0.3)
        if self.rows:
            facts.set_xticks([row.version for row in self.rows])
        return figure


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
