"""What the demo claims, and whether this run bears it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.demo.measure import Gain, VersionRow
from gateway.demo.users import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """What a run must reach. `learning` is off where a run is too short to show any.

    `gain` is the least difference of mean scores, of at least `turns` first turns on either side;
    `forgetting` the most that the share of right facts may fall.
    """

    versions: int = 8
    turns: int = 64
    gain: float = 0.3
    forgetting: float = 0.1
    learning: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    name: str
    held: bool
    detail: str


def check(rows: Sequence[VersionRow], gain: Gain | None, tally: Tally, goals: Goals) -> list[Claim]:
    """Every claim with the numbers that decide it."""
    published = sum(row.version > 0 for row in rows)
    claims = [
        Claim(
            name="versions",
            held=published >= goals.versions,
            detail=f"{published} published, {goals.versions} wanted",
        ),
        Claim(
            name="requests",
            held=tally.requests > 0 and tally.failed == 0,
            detail=f"{tally.failed} of {tally.requests} failed"
            + (f" ({', '.join(sorted(set(tally.errors)))})" if tally.errors else ""),
        ),
        Claim(
            name="trained versions answer",
            held=any(row.version > 0 and row.score.turns for row in rows),
            detail=f"{sum(row.score.turns for row in rows if row.version > 0)} judged first turns",
        ),
    ]
    if goals.learning:
        claims += [_gained(gain, goals), _remembered(rows, goals)]
    return claims


def _gained(gain: Gain | None, goals: Goals) -> Claim:
    if gain is None:
        return Claim(name="gain", held=False, detail="nothing to compare")
    low, high = gain.ci95
    enough = min(gain.last.turns, gain.base.turns) >= goals.turns
    over = [value for value in (gain.over_version_0, gain.over_control) if value is not None]
    return Claim(
        name="gain",
        held=enough and gain.mean >= goals.gain and min(over) >= goals.gain and low > 0,
        detail=(
            f"{gain.mean:+.2f} [{low:+.2f}, {high:+.2f}] over the base model, at least "
            f"{goals.gain:+.2f} wanted ({gain.last.turns} and {gain.base.turns} turns, "
            f"{goals.turns} wanted); the interval "
            + ("lies above" if low >= goals.gain else "reaches below")
            + f" {goals.gain:+.2f}"
        ),
    )


def _remembered(rows: Sequence[VersionRow], goals: Goals) -> Claim:
    first = next((row.facts for row in rows if row.version == 0), None)
    later = [row for row in rows if row.version > 0 and row.facts is not None]
    if first is None or not later:
        return Claim(name="facts", held=False, detail="not asked before and after training")
    worst = min(later, key=lambda row: row.facts or 0.0)
    fell = first - (worst.facts or 0.0)
    return Claim(
        name="facts",
        # A share of 20 questions is no exact binary fraction.
        held=fell <= goals.forgetting + 1e-9,
        detail=(
            f"{first:.2f} right at version 0, {worst.facts:.2f} at the worst (version "
            f"{worst.version}), {later[-1].facts:.2f} at the end (version {later[-1].version})"
        ),
    )
