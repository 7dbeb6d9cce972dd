"""All conversations of the corpus: recorded, generated from many seeds, and held out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from bench.replay import Case, Gateway, cases, opened
from bench.sessions import apart, measured
from gateway.records import new_id
from tests.transcripts.generate import generated, held_out, third, unseen

ROUNDS = 4


@pytest.fixture
async def replaying(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with opened(database_url, tmp_path / "spool") as gateway:
        yield gateway


async def test_requests_are_placed_right_and_no_users_are_merged(replaying: Gateway) -> None:
    report = await measured(replaying, [*cases(), *generated(range(ROUNDS))])
    assert report["turns"] > 1000 * ROUNDS
    wrong = [line for each in report["by_client"].values() for line in each["wrong"]]
    assert report["right"] >= 0.99 * report["turns"], wrong
    assert report["cross_user_merges"] == 0


async def test_the_same_conversations_of_two_tenants_share_nothing(replaying: Gateway) -> None:
    tenants = new_id(), new_id()
    await apart(replaying, [*cases(), *generated(range(1))], tenants)
    crossed = await replaying.database.fetchval(
        """
        SELECT count(*) FROM turns t LEFT JOIN turns p ON p.id = t.parent_id
        LEFT JOIN turns r ON r.id = t.retry_of
        JOIN sessions s ON s.id = t.session_id LEFT JOIN sessions o ON o.id = s.parent_session_id
        LEFT JOIN next_states n ON n.following_id = t.id LEFT JOIN turns f ON f.id = n.turn_id
        WHERE t.tenant_id <> s.tenant_id OR t.tenant_id <> p.tenant_id
            OR t.tenant_id <> r.tenant_id OR t.tenant_id <> o.tenant_id
            OR t.tenant_id <> f.tenant_id
        """
    )
    assert crossed == 0
    counts = await replaying.database.fetch("SELECT count(*) AS n FROM turns GROUP BY tenant_id")
    one, other = (row["n"] for row in counts)
    assert one == other > 1000


@pytest.mark.parametrize(("shapes", "share"), [(held_out, 0.99), (unseen, 0.9), (third, 0.85)])
async def test_shapes_that_no_rule_was_made_with(
    replaying: Gateway, shapes: Callable[[range], Iterator[Case]], share: float
) -> None:
    """Most are placed right; whatever is not opens a session of its own and merges nobody."""
    report = await measured(replaying, list(shapes(range(5))))
    assert report["cross_user_merges"] == 0
    assert report["right"] >= share * report["turns"]
