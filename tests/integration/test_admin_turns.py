"""Turns and sessions over the admin API: found, explained, closed, judged again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.records import new_id
from tests.admin import admin_of, call, done
from tests.fixtures_gateway import Gateway
from tests.seeded import SECRET, Seeded, seeded


@pytest.fixture
async def world(gateway: Gateway, database_url: str, tmp_path: Path) -> AsyncIterator[Seeded]:
    async with seeded(database_url, gateway.keys, tmp_path) as found:
        yield found


async def ids(gateway: Gateway, path: str, **query: object) -> set[str]:
    return {one["id"] for one in (await done(gateway, "GET", path, **query))["items"]}


async def test_turns_are_found_by_what_they_are(gateway: Gateway, world: Seeded) -> None:
    root, left, right, deep, side = (str(turn.id) for turn in world.turns)
    last = str(world.last.id)
    assert await ids(gateway, "turns") == {root, left, right, deep, side, last}
    assert await ids(gateway, "turns", kind="side") == {side}
    assert await ids(gateway, "turns", session_id=world.short.id) == {last}
    assert await ids(gateway, "turns", client="agent/2") == {last}
    assert await ids(gateway, "turns", version=1) == {deep, last}
    # Scores of root, left, right, deep and last: 1, -1, 0, 1, 1.
    assert await ids(gateway, "turns", min_score=0.5) == {root, deep, last}
    assert await ids(gateway, "turns", max_score=0) == {left, right}
    assert await ids(gateway, "turns", outcome="trained") == {root, left}
    assert await ids(gateway, "turns", until=time.time() - 3600) == set()
    heads = (await done(gateway, "GET", "turns"))["items"]
    assert SECRET not in str(heads)
    seen: list[str] = []
    cursor = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page = await done(gateway, "GET", "turns", limit=4, **more)
        seen += [one["id"] for one in page["items"]]
        if (cursor := page["next"]) is None:
            break
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 6


async def test_sessions_are_found_by_time_version_and_score(
    gateway: Gateway, world: Seeded
) -> None:
    long, short = str(world.long.id), str(world.short.id)
    # Means: (1 - 1 + 0 + 1) / 4, and 1.
    assert await ids(gateway, "sessions", min_score=0.5) == {short}
    assert await ids(gateway, "sessions", max_score=0.25) == {long}
    assert await ids(gateway, "sessions", version=0) == {long}
    assert await ids(gateway, "sessions", version=1) == {long, short}
    assert await ids(gateway, "sessions", version=7) == set()
    assert await ids(gateway, "sessions", since=time.time() + 60) == set()
    assert await ids(gateway, "sessions", since=time.time() - 60) == {long, short}
    assert await ids(gateway, "sessions", until=time.time() - 3600) == set()


async def test_a_turn_is_explained(gateway: Gateway, world: Seeded) -> None:
    root, _, right, deep, _ = world.turns
    found = await done(gateway, "GET", f"turns/{deep.id}/explain")
    numbers = {
        one["id"]: place
        for place, one in enumerate(
            sorted(
                (await done(gateway, "GET", f"sessions/{world.long.id}"))["items"],
                key=lambda one: (one["created_at"], one["id"]),
            ),
            1,
        )
    }
    assert (found["number"], found["parent"]) == (numbers[str(deep.id)], numbers[str(right.id)])
    assert (found["kind"], found["kind_rule"]) == ("main", "header")
    first = await done(gateway, "GET", f"turns/{root.id}/explain")
    assert (first["outcome"], first["reason"], first["parent"]) == ("trained", "trained", None)
    for path in (f"turns/{world.their_turn.id}/explain", f"turns/{new_id()}/explain"):
        assert (await call(gateway, "GET", path)).status == 404


async def test_a_session_is_closed_once(gateway: Gateway, world: Seeded) -> None:
    path = f"sessions/{world.short.id}/close"
    theirs = await admin_of(gateway, "elsewhere")
    assert (await call(gateway, "POST", path, key=theirs)).status == 404
    for closed in (True, False):
        assert await done(gateway, "POST", path) == {"id": str(world.short.id), "closed": closed}
    assert await ids(gateway, "sessions", status="closed") == {str(world.short.id)}
    actions = (await done(gateway, "GET", "audit", action="session_closed"))["items"]
    assert [one["subject"]["target"] for one in actions] == [str(world.short.id)]


async def test_turns_are_judged_again(gateway: Gateway, world: Seeded) -> None:
    root, left, right, deep, side = world.turns
    queued = "SELECT turn_id FROM judgements WHERE state = 'queued'"
    # Its feedback has the root in the queue already.
    assert [row["turn_id"] for row in await gateway.rows(queued)] == [root.id]
    assert await done(gateway, "POST", f"turns/{root.id}/rejudge") == {
        "found": 1, "queued": 0, "more": False,
    }  # fmt: skip
    assert (await done(gateway, "POST", f"turns/{side.id}/rejudge"))["found"] == 0
    assert (await done(gateway, "POST", f"turns/{left.id}/rejudge"))["queued"] == 1
    found = await done(gateway, "POST", "rejudge", {"version": 1, "limit": 1})
    assert found == {"found": 1, "queued": 1, "more": True}
    assert {row["turn_id"] for row in await gateway.rows(queued)} == {
        root.id, left.id, max(deep.id, world.last.id),
    }  # fmt: skip
    # Of each session all that is judged at all, and nothing twice.
    await done(gateway, "POST", f"sessions/{world.long.id}/rejudge")
    await done(gateway, "POST", f"sessions/{world.short.id}/rejudge")
    rows = await gateway.rows(f"{queued} ORDER BY turn_id")
    assert [row["turn_id"] for row in rows] == sorted(
        [root.id, left.id, right.id, deep.id, world.last.id]
    )
    theirs = await admin_of(gateway, "elsewhere")
    asked = await done(gateway, "POST", f"turns/{right.id}/rejudge", key=theirs)
    assert asked["found"] == 0
    assert (await call(gateway, "POST", "rejudge", {"limit": 1001})).status == 400
