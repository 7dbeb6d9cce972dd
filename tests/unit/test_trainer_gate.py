"""The gate's tests against values worked out by hand, and their error rates by simulation."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from statistics import NormalDist

import pytest
from pydantic import ValidationError

from gateway.records import Tally
from trainer.gate import decide, estimate, log_evidence
from trainer.gate_settings import GateSettings

#: Large error rates, so that few simulated runs can tell whether they are kept.
LOOSE = GateSettings(mode="canary", alpha=0.2, beta=0.2, max_turns=100_000)


def tally(score: float = 1.0, *, turns: int = 1, errors: int = 0, tokens: float = 20.0) -> Tally:
    """A session whose turns have a sum of scores and all the same length."""
    return Tally(
        turns=turns,
        errors=errors,
        log_length=turns * math.log1p(tokens),
        judged=turns,
        score=score,
    )


@pytest.mark.parametrize(
    ("sums", "spread", "mean", "variance"),
    [
        # One turn each: residuals are +1 and -1, the session added is one of spread 1.
        ([(1, 1.0), (1, -1.0)], 1.0, 0.0, (1 + 1 + 1) / 4),
        # Residuals 2 - 1 and 0 - 1; the session added has two turns: (1 + 1 + 4) / 16.
        ([(2, 2.0), (2, 0.0)], 1.0, 0.5, 0.375),
        # Four equal turns in one session say no more than one: (0.5 * 4)² / 4².
        ([(4, 4.0)], 0.5, 1.0, 0.25),
        # A mean over turns, not sessions: 3 / 4; residuals 3 - 2.25 and 0 - 0.75, 2 turns each.
        ([(3, 3.0), (1, 0.0)], 1.0, 0.75, (0.5625 + 0.5625 + 4) / 16),
    ],
)
def test_a_mean_has_the_variance_of_sessions(
    sums: list[tuple[int, float]], spread: float, mean: float, variance: float
) -> None:
    found = estimate(sums, spread)
    assert (found.mean, found.variance) == pytest.approx((mean, variance))


@pytest.mark.parametrize(
    ("difference", "variance", "scale", "expected"),
    [
        # 2 sqrt(1/2) e^0 / 2
        (0.0, 1.0, 1.0, math.log(0.5**0.5)),
        # 2 sqrt(1/2) e^(4/4) Φ(2 / sqrt 2) = 1.414214 * 2.718282 * 0.921350
        (2.0, 1.0, 1.0, math.log(3.541882)),
        # 2 sqrt(1/5) e^(4/10) Φ(2 / sqrt 5) = 0.894427 * 1.491825 * 0.814453
        (1.0, 1.0, 2.0, math.log(1.086745)),
    ],
)
def test_evidence_by_hand(
    difference: float, variance: float, scale: float, expected: float
) -> None:
    assert log_evidence(difference, variance, scale) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("difference", [-0.4, 0.05, 0.3])
def test_evidence_is_the_mixture_of_likelihood_ratios(difference: float) -> None:
    variance, scale, step = 0.01, 0.2, 1e-4
    prior = NormalDist(0, scale)
    total = sum(
        2 * prior.pdf(effect) * math.exp((effect * difference - effect**2 / 2) / variance) * step
        for effect in (step * (n + 0.5) for n in range(20_000))
    )
    assert log_evidence(difference, variance, scale) == pytest.approx(math.log(total), abs=1e-6)


def test_evidence_of_what_is_far_off_neither_overflows_nor_fails() -> None:
    assert log_evidence(1e3, 1e-4, 0.2) > 1e6
    assert log_evidence(-1e3, 1e-4, 0.2) == -math.inf


def test_nothing_is_decided_before_both_have_enough_judged_turns() -> None:
    few, many = [tally(-1.0)] * 19, [tally(1.0)] * 500
    for candidate, baseline in ((few, many), (many, few), (few, few), ([], many), (many, [])):
        assert decide(candidate, baseline, GateSettings()).outcome == "wait"


def test_replies_that_never_end_are_found_though_nobody_goes_on_and_nothing_is_judged() -> None:
    def unjudged(errors: int) -> Tally:
        return Tally(turns=1, errors=errors, log_length=7.0, judged=0, score=0.0)

    before, settings = [tally()] * 60, GateSettings()
    decision = decide([unjudged(1)] * 30, before, settings)
    assert (decision.outcome, decision.judged, decision.error_change) == ("fail", 0, 1.0)
    assert decision.reason == "the share of failed replies changed by +1"
    # Too few turns to tell, or replies that end: the judge is late, and is waited for.
    for candidate in ([unjudged(1)] * 19, [unjudged(0)] * 500):
        assert decide(candidate, before, settings).outcome == "wait"


def test_turns_that_nobody_judged_do_not_count_for_the_score() -> None:
    silent = Tally(turns=1, errors=0, log_length=3.0, judged=0, score=0.0)
    decision = decide([tally()] * 30 + [silent] * 30, [tally()] * 30, GateSettings())
    assert (decision.judged, decision.score_change) == (30, 0.0)


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ([tally(-1.0)] * 30, "the mean score changed by -2"),
        ([tally(errors=1)] * 30, "the share of failed replies changed by +1"),
        ([tally(tokens=799.0)] * 60, "replies are 38.1 times as long"),
        ([tally(tokens=0.0)] * 60, "replies are 0.0476 times as long"),
    ],
)
def test_each_way_of_being_worse_is_found_and_named(candidate: list[Tally], reason: str) -> None:
    decision = decide(candidate, [tally()] * 60, GateSettings())
    assert (decision.outcome, decision.reason) == ("fail", reason)


def test_one_long_session_is_no_proof_against_a_version() -> None:
    angry = [tally(-100.0, turns=100)]
    assert decide(angry, [tally()] * 200, GateSettings()).outcome == "wait"


def test_what_is_better_passes_once_every_limit_is_shown_to_be_kept() -> None:
    settings = GateSettings(mode="canary")
    better, before = [tally(1.0)] * 40, [tally(-1.0)] * 40
    assert decide(better, before, settings).outcome == "pass"
    # Fewer failures cannot be told apart from more of them yet.
    failing = [tally(1.0, errors=number % 2) for number in range(40)]
    assert decide(failing, [tally(-1.0, errors=n % 2) for n in range(40)], settings).outcome == (
        "wait"
    )


@pytest.mark.parametrize(("mode", "outcome"), [("canary", "fail"), ("watch", "pass")])
def test_in_the_end_the_estimate_decides_on_a_canary_and_nothing_holds_against_the_rest(
    mode: str, outcome: str
) -> None:
    settings = GateSettings(mode=mode, max_turns=20, max_error_rise=0.01)
    # 8 of 20 against 10 of 20 liked: down by 0.2, twice the limit, and far from shown.
    candidate = [tally(1.0)] * 8 + [tally(-1.0)] * 12
    baseline = [tally(1.0)] * 10 + [tally(-1.0)] * 10
    decision = decide(candidate, baseline, settings)
    assert (decision.outcome, round(decision.score_change, 6)) == (outcome, -0.2)
    assert decision.reason.startswith("nothing was shown in 20 judged turns")
    same = decide(baseline, baseline, settings)
    assert same.outcome == "pass"


def test_an_outcome_is_written_as_json() -> None:
    decision = decide([tally(1.0)] * 40, [tally(-1.0)] * 40, GateSettings())
    dumped = decision.dump()
    assert dumped["outcome"] == "pass"
    assert all(math.isfinite(v) for v in dumped.values() if isinstance(v, float))


def simulated(liked: float, baseline: float, *, runs: int, rng: random.Random) -> Counter[str]:
    """Outcomes of comparisons that are looked at every ten sessions, 300 sessions each."""

    def session(chance: float) -> Tally:
        # Users differ, and their turns agree with each other.
        own = min(1.0, max(0.0, chance + rng.uniform(-0.2, 0.2)))
        turns = rng.randint(1, 3)
        return Tally(
            turns=turns,
            errors=sum(rng.random() < 0.02 for _ in range(turns)),
            log_length=sum(rng.gauss(4, 0.8) for _ in range(turns)),
            judged=turns,
            score=float(sum(1 if rng.random() < own else -1 for _ in range(turns))),
        )

    def run() -> str:
        ours: list[Tally] = []
        theirs: list[Tally] = []
        for _ in range(30):
            ours += [session(liked) for _ in range(10)]
            theirs += [session(baseline) for _ in range(10)]
            outcome = decide(ours, theirs, LOOSE).outcome
            if outcome != "wait":
                return outcome
        return "wait"

    return Counter(run() for _ in range(runs))


@pytest.mark.parametrize("liked", [0.5, 0.75])
def test_a_version_that_is_no_worse_is_rarely_rolled_back_however_often_one_looks(
    liked: float,
) -> None:
    found = simulated(liked, liked, runs=150, rng=random.Random(1))
    assert found["fail"] <= LOOSE.alpha * 150


def test_a_version_that_is_worse_by_the_limit_is_rarely_promoted() -> None:
    found = simulated(0.7 - LOOSE.max_score_drop / 2, 0.7, runs=150, rng=random.Random(2))
    assert found["pass"] <= LOOSE.beta * 150


@pytest.mark.parametrize(("liked", "outcome"), [(0.3, "fail"), (0.9, "pass")])
def test_large_differences_are_found(liked: float, outcome: str) -> None:
    found = simulated(liked, 0.6, runs=60, rng=random.Random(3))
    assert found[outcome] >= 57


def test_looking_often_would_mislead_a_test_of_one_sample() -> None:
    """What the mixture is for: the same looks by a one-sided z-test at the same level."""
    rng, runs = random.Random(4), 300
    bound = NormalDist().inv_cdf(LOOSE.alpha / 4)

    def misled(crossed: Callable[[float, int], bool]) -> int:
        count = 0
        for _ in range(runs):
            total = 0.0
            for look in range(1, 101):
                total += rng.gauss(0, 1)
                if crossed(total, look):
                    count += 1
                    break
        return count

    naive = misled(lambda total, n: total / math.sqrt(n) < bound)
    ours = misled(
        lambda total, n: log_evidence(-total / n, 1 / n, 0.2) >= math.log(4 / LOOSE.alpha)
    )
    assert ours <= LOOSE.alpha / 4 * runs < naive


@pytest.mark.parametrize(
    "wrong",
    [{"alpha": 0.0}, {"share": 0.9}, {"mode": "hope"}, {"max_length_factor": 1.0}, {"k": 3}],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GateSettings(**wrong)
