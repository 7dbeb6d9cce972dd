"""Whether a version is worse than the one before it: sequential tests of their turns (pure).

Both versions' turns are looked at again and again while they come in, so a fixed-sample test
would find a difference sooner or later where there is none. Each question is therefore a test by
a mixture of likelihood ratios, whose error rate holds at all looks together: where the null
hypothesis is true, the evidence E is a supermartingale that starts at 1, and by Ville's inequality
it ever reaches 1/a with a chance of at most a (Robbins, Annals of Mathematical Statistics 41,
1970; two-sided for A/B tests: Johari, Pekelis, Walsh, "Always valid inference", 2015).

Turns of one session are not independent, so variances are those of sessions: the mean over turns
is a ratio of sums over sessions, and its variance is the delta method's (Deng, Knoblich, Lu,
"Applying the delta method in metric analytics", 2018). Normal approximation: error rates are
nominal for many sessions; for few, a session more than there is, far from the mean, keeps the
variance from being taken too small. `tests/unit/test_trainer_gate.py` measures what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gateway.records import Tally
from trainer.gate_settings import GateSettings

Outcome = Literal["wait", "pass", "fail"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over turns and its variance."""

    mean: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`outcome` with the reason in words, and what it rests on.

    `harm` and `proof` are the evidence of the most telling test that it is worse, and of the
    least telling that it is within the limits; natural logarithms.
    """

    outcome: Outcome
    reason: str
    judged: int
    score_change: float = 0.0
    error_change: float = 0.0
    length_factor: float = 1.0
    harm: float = 0.0
    proof: float = 0.0

    def dump(self) -> dict[str, Any]:
        """As JSON, which has no word for infinity."""
        return {
            name: max(-1e9, min(1e9, value)) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def estimate(sums: Sequence[tuple[int, float]], spread: float) -> Estimate:
    """The mean over all turns of sessions given as (turns, sum), and its variance.

    With N turns in S sessions, mean m: (Σ (sum - turns m)² + (spread N / S)²) / N². The last term
    is a session of the usual length whose turns are all off by `spread`.
    """
    total = sum(turns for turns, _ in sums)
    mean = sum(value for _, value in sums) / total
    squares = sum((value - turns * mean) ** 2 for turns, value in sums)
    return Estimate(mean, (squares + (spread * total / len(sums)) ** 2) / total**2)


def log_evidence(difference: float, variance: float, scale: float) -> float:
    """Ln E that a difference is above 0, against that it is not.

    E = ∫ exp(θ d / V - θ² / 2V) over a half-normal θ > 0 of `scale` τ, which is
    2 sqrt(V / (V + τ²)) exp(τ² d² / (2 V (V + τ²))) Φ(d τ / sqrt(V (V + τ²))).
    """
    both = variance + scale**2
    below = 0.5 * math.erfc(-difference * scale / math.sqrt(2 * variance * both))
    if below == 0:
        return -math.inf
    return (
        math.log(2)
        + 0.5 * math.log(variance / both)
        + (scale * difference) ** 2 / (2 * variance * both)
        + math.log(below)
    )


def decide(
    candidate: Sequence[Tally], baseline: Sequence[Tally], settings: GateSettings
) -> Decision:
    """What the turns of both versions say so far.

    fail: one of four tests (score lower, more errors, replies too long, too short) shows harm at
    alpha / 4, so that all together err with a chance of at most alpha. pass: each of four tests
    shows at beta that its limit is kept; a version at or beyond some limit passes with a chance of
    at most beta. After `max_turns` judged turns a canary passes where the estimates are within
    half of each limit, else fails, and a watched version passes, since nothing was shown against
    it: by then the error of a drop by the whole limit is that of one look, Φ(-limit / 2 sd).

    Before `min_turns` judged turns of both only the test for errors may fail it: where no reply
    comes to its end nobody goes on, and nothing is ever judged.
    """
    judged = sum(tally.judged for tally in candidate)
    if min(judged, sum(tally.judged for tally in baseline)) < settings.min_turns:
        return _by_errors(candidate, baseline, settings, judged)
    score = _change(candidate, baseline, _score, 1.0)
    errors = _change(candidate, baseline, _errors, 0.5)
    length = _change(candidate, baseline, _length, 1.0)
    drop, rise = settings.max_score_drop, settings.max_error_rise
    stretch = math.log(settings.max_length_factor)
    factor = math.exp(length.mean)
    harms = {
        f"the mean score changed by {score.mean:+.3g}": _shown(score, 0.0, drop, down=True),
        f"the share of failed replies changed by {errors.mean:+.3g}": _shown(errors, 0.0, rise),
        f"replies are {factor:.3g} times as long": max(
            _shown(length, stretch, stretch), _shown(length, -stretch, stretch, down=True)
        ),
    }
    proof = min(
        _shown(score, -drop, drop),
        _shown(errors, rise, rise, down=True),
        _shown(length, stretch, stretch, down=True),
        _shown(length, -stretch, stretch),
    )
    reason, harm = max(harms.items(), key=lambda item: item[1])
    outcome: Outcome = "wait"
    if harm >= math.log(4 / settings.alpha):
        outcome = "fail"
    elif proof >= math.log(1 / settings.beta):
        outcome, reason = "pass", "score, errors and length are shown to be within the limits"
    elif judged >= settings.max_turns:
        near = score.mean >= -drop / 2 and errors.mean <= rise / 2 and abs(length.mean) <= stretch
        outcome = "pass" if near or settings.mode == "watch" else "fail"
        reason = f"nothing was shown in {judged} judged turns; {reason}"
    else:
        reason = f"nothing is shown yet; {reason}"
    return Decision(
        outcome=outcome,
        reason=reason,
        judged=judged,
        score_change=score.mean,
        error_change=errors.mean,
        length_factor=factor,
        harm=harm,
        proof=proof,
    )


def _by_errors(
    candidate: Sequence[Tally], baseline: Sequence[Tally], settings: GateSettings, judged: int
) -> Decision:
    """What may be said before enough is judged: it fails, or it waits."""
    wait = Decision(
        outcome="wait", reason=f"fewer than {settings.min_turns} judged turns", judged=judged
    )
    if any(sum(tally.turns for tally in arm) < settings.min_turns for arm in (candidate, baseline)):
        return wait
    errors = _change(candidate, baseline, _errors, 0.5)
    harm = _shown(errors, 0.0, settings.max_error_rise)
    if harm < math.log(4 / settings.alpha):
        return wait
    return Decision(
        outcome="fail",
        reason=f"the share of failed replies changed by {errors.mean:+.3g}",
        judged=judged,
        error_change=errors.mean,
        harm=harm,
    )


def _shown(change: Estimate, bound: float, limit: float, *, down: bool = False) -> float:
    """Ln E that a change is above `bound` (below it, with `down`)."""
    beyond = bound - change.mean if down else change.mean - bound
    # Changes of the size of a few limits are what is looked for; others are found a little later.
    return log_evidence(beyond, change.variance, 2 * limit)


def _change(
    candidate: Sequence[Tally],
    baseline: Sequence[Tally],
    of: Callable[[Tally], tuple[int, float]],
    spread: float,
) -> Estimate:
    """The difference of the means, candidate - baseline, of independent sessions."""
    ours, theirs = (
        estimate([pair for pair in map(of, arm) if pair[0]], spread)
        for arm in (candidate, baseline)
    )
    return Estimate(ours.mean - theirs.mean, ours.variance + theirs.variance)


def _score(tally: Tally) -> tuple[int, float]:
    return tally.judged, tally.score


def _errors(tally: Tally) -> tuple[int, float]:
    return tally.turns, float(tally.errors)


def _length(tally: Tally) -> tuple[int, float]:
    return tally.turns, tally.log_length
