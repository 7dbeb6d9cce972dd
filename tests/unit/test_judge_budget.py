from __future__ import annotations

import pytest

from judge.budget import Budget


def test_tokens_and_money_are_counted_by_the_day() -> None:
    now = [86_400.0 * 10]
    budget = Budget(tokens_per_day=1000, prompt_usd=2.0, completion_usd=10.0, clock=lambda: now[0])
    budget.spend(500, 100)
    # 500 tokens at 2 and 100 at 10 dollars a million.
    assert budget.report() == {"tokens_today": 600, "usd_today": 0.002}
    assert not budget.spent
    budget.spend(400, 0)
    assert budget.spent
    now[0] += 86_399
    assert budget.spent
    now[0] += 1
    assert not budget.spent
    assert budget.report() == {"tokens_today": 0, "usd_today": 0}


@pytest.mark.parametrize(("limit", "spent"), [(0.01, True), (0.011, False), (None, False)])
def test_a_limit_in_money(limit: float | None, spent: bool) -> None:
    budget = Budget(usd_per_day=limit, prompt_usd=1.0)
    budget.spend(10_000, 5)
    assert budget.spent is spent
