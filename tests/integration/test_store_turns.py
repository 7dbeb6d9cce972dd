"""Finding parents, sessions and ids; closing sessions."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import DatabaseSettings
from gateway.errors import StoreUnavailable
from gateway.records import FinishReason, TurnKind, new_id
from gateway.store.database import Database
from gateway.store.turns import FIND_CANDIDATES, TurnStore
from gateway.store.writer import TurnWriter
from tests.factories import digest, next_state, session, turn

Parts = tuple[Database, TurnWriter, TurnStore]


@pytest.fixture
async def parts(database_url: str, tmp_path: Path) -> AsyncIterator[Parts]:
    settings = DatabaseSettings(spool=tmp_path)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    yield database, writer, TurnStore(database, 100)
    await writer.close()
    await database.close()


async def test_candidates_are_found_by_any_hash_deepest_first(parts: Parts):
    _, writer, turns = parts
    one = session()
    root = turn(one, chain_hash=digest("a"))
    child = turn(one, root, chain_hash=digest("ab"), finish_reason=FinishReason.LENGTH)
    await writer.commit(one, root)
    await writer.commit(one, child)
    found = await turns.find_candidates(one.tenant_id, [digest("a"), digest("ab"), digest("abc")])
    assert [candidate.turn_id for candidate in found] == [child.id, root.id]
    deepest, shallow = found
    assert (deepest.session_id, deepest.key_id) == (one.id, one.key_id)
    assert (deepest.depth, deepest.message_count, deepest.kind) == (1, 4, TurnKind.MAIN)
    assert deepest.finish_reason is FinishReason.LENGTH
    assert deepest.chain_hash == digest("ab")
    assert deepest.tools_hash == digest("tools")
    assert deepest.created_at == pytest.approx(child.created_at, abs=1e-5)
    assert (deepest.continued, shallow.continued) == (False, True)
    assert await turns.find_candidates(one.tenant_id, []) == []


async def test_another_tenant_finds_nothing(parts: Parts):
    _, writer, turns = parts
    one = session(external_id="chat")
    root = turn(one)
    await writer.commit(one, root)
    stranger = new_id()
    assert await turns.find_candidates(stranger, [root.chain_hash]) == []
    assert await turns.trail(stranger, root.id) is None
    assert (await turns.named_session(stranger, "chat")).id is None
    assert (await turns.named_session(one.tenant_id, "chat")).id == one.id
    assert not await turns.end_session(stranger, one.id, "ended")
    # Also after the owner has it in memory.
    assert await turns.trail(one.tenant_id, root.id) is not None
    assert await turns.trail(stranger, root.id) is None


async def test_a_retry_does_not_continue_its_parent(parts: Parts):
    _, writer, turns = parts
    one = session()
    root = turn(one)
    retry = turn(one, root, retry_of=new_id())
    await writer.commit(one, root, retry)
    (found,) = await turns.find_candidates(one.tenant_id, [root.chain_hash])
    assert not found.continued


async def test_finding_candidates_uses_the_index(parts: Parts):
    database, writer, _ = parts
    one = session()
    await writer.commit(one, *(turn(one) for _ in range(300)))
    await writer.commit(*(turn(session()) for _ in range(1500)))
    await database.execute("ANALYZE turns")
    await database.execute("ANALYZE sessions")
    hashes = [digest(str(number)) for number in range(400)]
    plan = await database.fetchval(
        f"EXPLAIN (FORMAT json) {FIND_CANDIDATES}", one.tenant_id, hashes
    )

    def nodes(node: dict) -> list[dict]:
        return [node, *(below for child in node.get("Plans", ()) for below in nodes(child))]

    plans = json.loads(plan) if isinstance(plan, str) else plan
    found = nodes(plans[0]["Plan"])
    assert "Seq Scan" not in {
        node["Node Type"] for node in found if node.get("Relation Name") == "turns"
    }
    # Both columns, in the index itself.
    (scan,) = (node for node in found if node.get("Index Name") == "turns_chain")
    assert "tenant_id" in scan["Index Cond"]
    assert "chain_hash" in scan["Index Cond"]


async def test_a_trail_is_put_together_through_the_chain(parts: Parts):
    database, writer, turns = parts
    one = session()
    root = turn(one, prompt_ids=(1, 2, 3), sampled_ids=(10, 11), logprobs=(-1.0, -1.0),
                spans=(), trainable=False, untrainable_reason="x")  # fmt: skip
    # The child saw 1 2 3 10 11 | 4 5; the branch kept only 1 2 of the root.
    child = turn(one, root, prompt_ids=(4, 5), sampled_ids=(20,), logprobs=(-1.0,),
                 spans=(), trainable=False, untrainable_reason="x")  # fmt: skip
    grandchild = turn(one, child, prompt_ids=(6,))
    branch = turn(one, root, shared_len=2, prompt_ids=(7, 8, 9))
    fresh = turn(one, child, shared_len=0, prompt_ids=(30, 31))
    await writer.commit(one, grandchild, branch, child, fresh, root)
    expected = {
        root.id: ([1, 2, 3], [10, 11]),
        child.id: ([1, 2, 3, 10, 11, 4, 5], [20]),
        grandchild.id: ([1, 2, 3, 10, 11, 4, 5, 20, 6], [10, 11, 12, 13]),
        branch.id: ([1, 2, 7, 8, 9], [10, 11, 12, 13]),
        fresh.id: ([30, 31], [10, 11, 12, 13]),
    }
    for turn_id, ids in expected.items():
        trail = await turns.trail(one.tenant_id, turn_id)
        assert trail is not None
        assert (list(trail.prompt_ids), list(trail.sampled_ids)) == ids
        assert trail.turn_id == turn_id
    remembering = TurnStore(database, 100)
    for record in (root, child, grandchild, branch, fresh):
        remembering.remember(record)
    await database.execute("DELETE FROM turns")
    for turn_id, ids in expected.items():
        trail = await remembering.trail(one.tenant_id, turn_id)
        assert trail is not None
        assert (list(trail.prompt_ids), list(trail.sampled_ids)) == ids


async def test_a_chain_with_a_gap_has_no_trail(parts: Parts):
    _, writer, turns = parts
    one = session()
    root = turn(one)
    child = turn(one, root)
    await writer.commit(one, child)
    assert await turns.trail(one.tenant_id, child.id) is None
    assert await turns.trail(one.tenant_id, new_id()) is None
    turns.remember(child)
    assert await turns.trail(one.tenant_id, child.id) is None
    await writer.commit(one, root)
    trail = await turns.trail(one.tenant_id, child.id)
    assert trail is not None
    assert list(trail.prompt_ids) == [1, 2, 3, 10, 11, 12, 13, 1, 2, 3]


async def test_memory_is_bounded_in_turns_and_in_bytes(parts: Parts):
    database, _, _ = parts
    one = session()
    few = TurnStore(database, 3)
    many = [turn(one) for _ in range(5)]
    for record in many:
        few.remember(record)
    assert len(few._cache) == 3
    assert few._cache.get(one.tenant_id, many[1].id) is None
    assert few._cache.get(one.tenant_id, many[2].id) is not None
    # Each trail is 7 ids, 28 bytes: two fit, the one used last stays.
    small = TurnStore(database, 100, cache_bytes=60)
    small.remember(many[0])
    small.remember(many[1])
    assert await small.trail(one.tenant_id, many[0].id) is not None
    small.remember(many[2])
    assert len(small._cache) == 2
    assert small._cache.get(one.tenant_id, many[1].id) is None


async def test_a_repeated_body_is_found_for_its_key_and_time(parts: Parts):
    _, writer, turns = parts
    one = session()
    other = session(tenant_id=one.tenant_id)
    now = time.time()
    body = digest("body")
    old = turn(one, request_hash=body, created_at=now - 100)
    new = turn(one, request_hash=body, created_at=now, finish_reason=FinishReason.ABORT)
    theirs = turn(other, request_hash=body, created_at=now)
    await writer.commit(one, old, new, other, theirs)
    found = await turns.find_by_request(one.tenant_id, one.key_id, body, now - 200)
    assert [candidate.turn_id for candidate in found] == [new.id, old.id]
    found = await turns.find_by_request(one.tenant_id, one.key_id, body, now - 50)
    assert [candidate.finish_reason for candidate in found] == [FinishReason.ABORT]


async def test_the_last_main_turn_of_a_session(parts: Parts):
    _, writer, turns = parts
    one = session()
    # Ids of one millisecond have no order of their own.
    ids = sorted(new_id() for _ in range(3))
    first, second = turn(one, id=ids[0]), turn(one, id=ids[1])
    side = turn(one, id=ids[2], kind=TurnKind.SIDE)
    assert await turns.last_main_turn(one.id) is None
    await writer.commit(one, first, second, side)
    found = await turns.last_main_turn(one.id)
    assert found is not None
    assert found.turn_id == second.id


async def test_idle_sessions_close_and_their_last_turns_say_why(parts: Parts):
    database, writer, turns = parts
    old = session(seen_at=time.time() - 1000)
    live = session()
    followed = turn(old, created_at=time.time() - 1000)
    last = turn(old, followed, created_at=time.time() - 1000)
    side = turn(old, kind=TurnKind.SIDE, created_at=time.time() - 1000)
    await writer.commit(old, followed, last, side, next_state(followed))
    await writer.commit(live, turn(live))
    assert await turns.close_idle(2000) == 0
    assert await turns.close_idle(500) == 1
    assert await turns.close_idle(500) == 0
    rows = await database.fetch("SELECT turn_id, outcome, reason FROM verdicts")
    assert [tuple(row) for row in rows] == [(last.id, "unscored", "no_next_state")]
    rows = await database.fetch("SELECT id, status, end_reason FROM sessions")
    assert {tuple(row) for row in rows} == {
        (old.id, "closed", "idle"),
        (live.id, "open", None),
    }


async def test_a_session_is_ended_once(parts: Parts):
    database, writer, turns = parts
    one = session()
    last = turn(one)
    await writer.commit(one, last)
    assert await turns.end_session(one.tenant_id, one.id, "client_done")
    assert not await turns.end_session(one.tenant_id, one.id, "client_done")
    assert await database.fetchval("SELECT reason FROM verdicts WHERE turn_id = $1", last.id) == (
        "no_next_state"
    )
    assert await database.fetchval("SELECT end_reason FROM sessions") == "client_done"


async def test_a_hanging_table_costs_no_more_than_the_patience(parts: Parts, database_url: str):
    database, _, _ = parts
    settings = database.settings.model_copy(update={"commit_timeout_s": 0.2})
    impatient = await Database.open(settings, database_url, application="test")
    turns = TurnStore(impatient, 10)
    async with database.transaction() as connection:
        await connection.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable):
            await turns.find_candidates(new_id(), [digest("x")])
    assert await turns.find_candidates(new_id(), [digest("x")]) == []
    await impatient.close()


async def test_names_that_postgres_cannot_hold_are_found_as_they_were_stored(parts: Parts):
    _, writer, turns = parts
    one = session(external_id="a\0b")
    await writer.commit(one)
    assert (await turns.named_session(one.tenant_id, "a\0b")).id == one.id
    assert replace(one).external_id == "a\0b"
