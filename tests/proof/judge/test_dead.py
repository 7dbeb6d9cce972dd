"""A dead judge under a longer load."""

from __future__ import annotations

from tests.fixtures_gateway import Gateway
from tests.integration.test_judge_dead import judge_later


async def test_a_thousand_turns_are_served_without_a_judge_and_judged_later(
    gateway: Gateway,
) -> None:
    await judge_later(gateway, sessions=50, turns=20)
