"""Credit for what came of a turn later in its session (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


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
