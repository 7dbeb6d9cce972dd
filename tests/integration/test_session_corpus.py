"""Recorded clients, replayed: every request is placed where its label says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.replay import Case, Gateway, cases, key, opened, replay
from bench.replay import replay_in_turn as in_turn
from bench.sessions import apart, judged, merges
from gateway.records import new_id
from tests.transcripts.generate import FAMILIES, SCENES, generated, held_out, third, unseen

CASES = {case.name: case for case in cases()}


@pytest.fixture
async def replaying(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with opened(database_url, tmp_path / "spool") as gateway:
        yield gateway


async def test_every_recorded_request_is_placed_as_labelled(replaying: Gateway) -> None:
    assert len({case.client for case in CASES.values()}) >= 12
    for case in CASES.values():
        outcome = await judged(replaying, await replay(replaying, case, key(new_id())))
        assert outcome.wrong == []
        assert outcome.turns == outcome.right > 0


def test_generated_conversations_are_the_same_for_a_seed() -> None:
    one, again, other = (list(generated(range(n, n + 1))) for n in (0, 0, 1))
    assert one == again
    assert len(one) == len(FAMILIES) * len(SCENES) >= 12 * 11
    assert len({case.client for case in one}) == len(FAMILIES)
    assert [case.requests for case in one] != [case.requests for case in other]


async def test_every_generated_request_is_placed_as_its_script_says(replaying: Gateway) -> None:
    outcomes = await apart(replaying, list(generated(range(1))))
    assert [line for _, outcome in outcomes for line in outcome.wrong] == []
    assert sum(outcome.right for _, outcome in outcomes) > 1000


#: What nothing tells apart: users whose words and replies were the same so far.
TWINS = ("twins-with-suggestions", "same-answers")


async def test_shapes_that_no_rule_was_made_with_are_placed_right(replaying: Gateway) -> None:
    shapes = [*held_out(range(1)), *unseen(range(1)), *third(range(1))]
    outcomes = await apart(replaying, shapes)
    wrong = [
        line for case, outcome in outcomes for line in outcome.wrong if case.client not in TWINS
    ]
    assert wrong == []
    together = await in_turn(replaying, shapes, key(new_id()))
    assert await merges(replaying, together) == 0


async def test_users_of_one_key_are_never_merged(replaying: Gateway) -> None:
    together = await in_turn(replaying, list(CASES.values()), key(new_id()))
    assert await merges(replaying, together) == 0


async def test_the_same_requests_of_another_tenant_share_nothing(replaying: Gateway) -> None:
    case = CASES["claude-code"]
    one, other = key(new_id()), key(new_id())
    first = await replay(replaying, case, one)
    second = await replay(replaying, case, other)
    for replayed in (first, second):
        assert (await judged(replaying, replayed)).wrong == []
    rows = await replaying.database.fetch("SELECT tenant_id, session_id FROM turns")
    assert len({row["session_id"] for row in rows}) == 4
    assert len({tuple(row) for row in rows}) == 4


async def test_a_wrong_label_is_told(replaying: Gateway) -> None:
    right = CASES["langgraph-threads"]
    merged = Case(
        name="merged",
        client="x",
        expect=("A - main -", "A - main -", "A 1 main user", "A 1 main user"),
        requests=right.requests,
    )
    outcome = await judged(replaying, await replay(replaying, merged, key(new_id())))
    assert (outcome.turns, outcome.right) == (4, 2)
    assert all(line.startswith("merged ") for line in outcome.wrong)
