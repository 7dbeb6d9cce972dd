"""Credit for what came of a turn later in its session (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from gateway.records import TrainingSample


def returns(samples: Sequence[TrainingSample], discount: float) -> list[float]:
    """G [n] of each sample from the scores of its session in the batch; 0 where it scored 0.

    Replies to one request are each followed by the same later turns. At a discount of 0 these are
    the scores.
    """
    found = [sample.score for sample in samples]
    if not discount:
        return found
    order = sorted(range(len(samples)), key=lambda i: (samples[i].session_id, samples[i].depth, i))
    for _, session in groupby(order, key=lambda i: samples[i].session_id):
        turns = [list(turn) for _, turn in groupby(session, key=lambda i: samples[i].depth)]
        depths = [samples[turn[0]].depth for turn in turns]
        # What follows a turn is the mean of the replies that were given there.
        means = [sum(samples[i].score for i in turn) / len(turn) for turn in turns]
        for turn, mean, whole in zip(
            turns, means, discounted(means, depths, discount), strict=True
        ):
            for i in turn:
                found[i] = samples[i].score + whole - mean if samples[i].score else 0.0
    return found


def discounted(scores: Sequence[float], turns: Sequence[int], discount: float) -> list[float]:
    """G_i = Σ over j >= i of discount^(turn_j - turn_i) s_j [n] of one session.

    `turns` [n] are places in the session, rising; one that is missing scored 0. A discount of 0
    leaves every turn its own score. Raises ValueError where turns do not rise.
    """
    if any(later <= earlier for earlier, later in pairwise(turns)):
        raise ValueError("the turns of a session must rise")
    returns: list[float] = []
    after, place = 0.0, 0
    for score, turn in zip(reversed(scores), reversed(turns), strict=True):
        after = score + (discount ** (place - turn) * after if returns else 0.0)
        returns.append(after)
        place = turn
    return returns[::-1]
