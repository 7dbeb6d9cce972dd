"""Finding parents, sessions and ids; closing sessions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config import DatabaseSettings
from gateway.errors import StoreUnavailable
from gateway.records import FinishReason, TurnKind, new_id
from gateway.store.candidates import FIND_CANDIDATES, wanted_row
from gateway.store.database import Database
from gateway.store.lookups import PLANNER
from gateway.store.recent import RecentTurns
from gateway.store.table import document
from gateway.store.turns import TurnStore
from gateway.store.wanted import Wanted
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
    found = await turns.find_candidates(
        one.tenant_id, Wanted(chains=[digest("a"), digest("ab"), digest("abc")])
    )
    assert [candidate.turn_id for candidate in found] == [child.id, root.id]
    deepest, shallow = found
    assert (deepest.session_id, deepest.parent_id) == (one.id, root.id)
    assert (deepest.depth, deepest.message_count, deepest.kind) == (1, 4, TurnKind.MAIN)
    assert deepest.finish_reason is FinishReason.LENGTH
    assert deepest.chain_hash == digest("ab")
    assert deepest.tools_hash == digest("tools")
    assert deepest.created_at == pytest.approx(child.created_at, abs=1e-5)
    assert (deepest.continued, shallow.continued) == (False, True)
    assert await turns.find_candidates(one.tenant_id, Wanted()) == []


async def test_another_tenant_finds_nothing(parts: Parts):
    _, writer, turns = parts
    one = session(external_id="chat")
    root = turn(one)
    await writer.commit(one, root)
    stranger = new_id()
    assert await turns.find_candidates(stranger, Wanted(chains=[root.chain_hash])) == []
    assert await turns.trail(stranger, root.id) is None
    assert await turns.named_sessions(stranger, ["chat"]) == {}
    assert (await turns.named_sessions(one.tenant_id, ["chat"]))["chat"].id == one.id
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
    (found,) = await turns.find_candidates(one.tenant_id, Wanted(chains=[root.chain_hash]))
    assert not found.continued


async def test_finding_candidates_uses_an_index_for_every_key(parts: Parts):
    database, writer, _ = parts
    one = session()
    await writer.commit(one, *(turn(one, echoes=(f"call {n}",)) for n in range(300)))
    await writer.commit(*(turn(session(), echoes=(f"other {n}",)) for n in range(1500)))
    for table in ("turns", "sessions", "echoes"):
        await database.execute(f"ANALYZE {table}")
    wanted = Wanted(
        chains=[digest(str(number)) for number in range(400)],
        echoes=["call 1", "call 2"],
        request=digest("body"),
        since=time.time() - 600,
        previous=new_id(),
    )
    connection = await database.connect(**PLANNER)
    plan = await connection.fetchval(
        f"EXPLAIN (FORMAT json) {FIND_CANDIDATES}",
        document([wanted_row(one.tenant_id, wanted)]),
    )
    await connection.close()

    def nodes(node: dict) -> list[dict]:
        return [node, *(below for child in node.get("Plans", ()) for below in nodes(child))]

    plans = json.loads(plan) if isinstance(plan, str) else plan
    found = nodes(plans[0]["Plan"])
    assert "Seq Scan" not in {
        node["Node Type"] for node in found if node.get("Relation Name") in ("turns", "echoes")
    }
    # Every column that is looked up, in the index itself.
    conditions = {node["Index Name"]: node["Index Cond"] for node in found if "Index Cond" in node}
    for index, columns in {
        "turns_chain": ("tenant_id", "chain_hash"),
        "echoes_pkey": ("tenant_id", "id"),
        "turns_request": ("tenant_id", "request_hash", "created_at"),
    }.items():
        assert all(column in conditions[index] for column in columns), index


async def test_candidates_are_found_by_what_clients_echo(parts: Parts):
    _, writer, turns = parts
    one, other = session(user="ann"), session()
    called = turn(one, echoes=("call", "~outline"), idempotency_key="k", delivered=False)
    same = turn(other, tenant_id=one.tenant_id, echoes=("~outline",))
    await writer.commit(one, called, replace(other, tenant_id=one.tenant_id), same)
    (found,) = await turns.find_candidates(one.tenant_id, Wanted(echoes=["call", "x"]))
    assert (found.turn_id, found.echo, found.user) == (called.id, "call", "ann")
    assert (found.idempotency_key, found.delivered) == ("k", False)
    found = await turns.find_candidates(one.tenant_id, Wanted(echoes=["~outline"]))
    assert {each.turn_id for each in found} == {called.id, same.id}
    (found,) = await turns.find_candidates(one.tenant_id, Wanted(previous=called.id))
    assert found.turn_id == called.id
    wanted = Wanted(echoes=["call"], previous=called.id, request=called.request_hash)
    assert await turns.find_candidates(new_id(), wanted) == []


async def test_what_many_have_said_does_not_hide_an_id(parts: Parts):
    _, writer, turns = parts
    one = session()
    called = turn(one, echoes=("call", "=said"))
    others = [turn(one, echoes=("=said",)) for _ in range(90)]
    await writer.commit(one, called, *others)
    found = await turns.find_candidates(one.tenant_id, Wanted(echoes=["=said", "call"]))
    assert [each.turn_id for each in found if each.echo == "call"] == [called.id]
    assert len([each for each in found if each.echo == "=said"]) == 8
    for record in (called, *others):
        turns.remember(record, session=one)
    found = turns.recent_candidates(one.tenant_id, Wanted(echoes=["=said", "call"]))
    assert called.id in {each.turn_id for each in found}
    assert len(found) <= 65


async def test_what_was_stored_last_is_found_without_postgres(parts: Parts):
    database, _, turns = parts
    one = session(external_id="chat", user="ann")
    root = turn(one, echoes=("call",))
    child = turn(one, root, created_at=time.time() - 100)
    for record in (root, child, child):
        turns.remember(record, session=one)
    wanted = Wanted(
        chains=[root.chain_hash],
        echoes=["call"],
        request=child.request_hash,
        since=time.time() - 200,
    )
    found = turns.recent_candidates(one.tenant_id, wanted)
    assert [(each.turn_id, each.echo, each.continued) for each in found] == [
        (root.id, "call", True),
        (child.id, None, False),
    ]
    assert {each.user for each in found} == {"ann"}
    assert turns.recent_candidates(new_id(), wanted) == []
    late = replace(wanted, chains=[], echoes=[], since=time.time() - 50)
    assert turns.recent_candidates(one.tenant_id, late) == []
    assert turns.recent_sessions(one.tenant_id, ["chat", "x"])["chat"].id == one.id
    assert turns.recent_sessions(new_id(), ["chat"]) == {}
    # Spooled turns are not in Postgres yet: what it does not find is found here all the same.
    merged = await turns.find_candidates(one.tenant_id, wanted)
    assert {each.turn_id for each in merged} == {root.id, child.id}
    assert await database.fetchval("SELECT count(*) FROM turns") == 0


async def test_what_postgres_has_is_asked_of_it_alone(parts: Parts):
    _, _, turns = parts
    one = session(external_id="chat \ud800")
    kept, spooled = turn(one, echoes=("a \udfff",)), turn(one, echoes=("b",))
    both = Wanted(echoes=["a \udfff", "b"])
    turns.remember(kept, session=one)
    assert await turns.find_candidates(one.tenant_id, Wanted(echoes=["b"])) == []
    assert await turns.named_sessions(one.tenant_id, ["chat"]) == {}
    turns.remember(spooled, session=one, stored=False)
    (found,) = await turns.find_candidates(one.tenant_id, Wanted(echoes=["b"]))
    assert (found.turn_id, found.session_id, found.kind) == (spooled.id, one.id, spooled.kind)
    found_both = turns.recent_candidates(one.tenant_id, both)
    assert [each.turn_id for each in found_both] == [kept.id, spooled.id]
    assert turns.recent_sessions(one.tenant_id, ["chat \ud800"])["chat \ud800"].id == one.id


async def test_an_index_is_kept_as_long_as_what_is_not_in_postgres(parts: Parts):
    one = session()
    few = RecentTurns(3)
    spooled, *others = (turn(one, echoes=(f"call {n}",)) for n in range(5))
    wanted = Wanted(echoes=["call 0"])
    few.add(spooled, one, stored=False)
    for record in others[:2]:
        few.add(record, one)
    assert [each.turn_id for each in few.merged(one.tenant_id, wanted, [])] == [spooled.id]
    few.add(others[2], one)
    assert few.merged(one.tenant_id, wanted, []) == []
    few.add(others[3], one)
    found = few.find(one.tenant_id, Wanted(echoes=[f"call {n}" for n in range(5)]))
    assert [each.turn_id for each in found] == [record.id for record in others[1:]]


async def test_what_was_stored_last_is_forgotten_in_time(parts: Parts):
    one = session(external_id="chat")
    few = RecentTurns(3)
    many = [turn(one, echoes=(f"call {n}",)) for n in range(5)]
    for record in many:
        few.add(record, one)
    assert len(few) == 3
    hashes = [record.chain_hash for record in many]
    found = few.find(one.tenant_id, Wanted(chains=hashes, echoes=["call 0", "call 4"]))
    assert {each.turn_id for each in found} == {record.id for record in many[2:]}


async def test_a_named_session_says_whether_it_was_compacted(parts: Parts):
    _, writer, turns = parts
    one = session(external_id="chat")
    ids = sorted(new_id() for _ in range(3))
    for number, rule in enumerate(("first_turn", "compaction", "extends_chain")):
        await writer.commit(one, turn(one, id=ids[number], kind_rule=rule))
        found = (await turns.named_sessions(one.tenant_id, ["chat", "none"]))["chat"]
        assert (found.id, found.turns, found.compacted) == (
            one.id,
            number + 1,
            rule == "compaction",
        )


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


async def test_a_repeated_body_is_found_for_its_time(parts: Parts):
    _, writer, turns = parts
    one = session()
    other = session()
    now = time.time()
    body = digest("body")
    old = turn(one, request_hash=body, created_at=now - 100)
    new = turn(one, request_hash=body, created_at=now, finish_reason=FinishReason.ABORT)
    theirs = turn(other, request_hash=body, created_at=now)
    await writer.commit(one, old, new, other, theirs)
    found = await turns.find_candidates(one.tenant_id, Wanted(request=body, since=now - 200))
    assert {candidate.turn_id for candidate in found} == {new.id, old.id}
    found = await turns.find_candidates(one.tenant_id, Wanted(request=body, since=now - 50))
    assert [candidate.finish_reason for candidate in found] == [FinishReason.ABORT]


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


async def test_a_turn_that_is_stored_while_its_session_ends_gets_a_verdict(parts: Parts):
    """The end waits for it, as it has the session's row, and sees it then."""
    database, writer, turns = parts
    one, other = session(), session()
    first, late = turn(one), turn(other)
    await writer.commit(one, first)
    await writer.commit(other, late)
    async with database.transaction() as storing:
        await storing.execute("UPDATE sessions SET last_seen = now() WHERE id = $1", one.id)
        await storing.execute("UPDATE turns SET session_id = $1 WHERE id = $2", one.id, late.id)
        ending = asyncio.create_task(turns.end_session(one.tenant_id, one.id, "client_done"))
        while not await database.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
            await asyncio.sleep(0.01)
    assert await ending
    rows = await database.fetch("SELECT turn_id, reason FROM verdicts")
    assert {tuple(row) for row in rows} == {(each.id, "no_next_state") for each in (first, late)}


async def test_a_turn_that_is_stored_after_the_end_of_its_session_gets_a_verdict(parts: Parts):
    database, writer, turns = parts
    one = session(seen_at=1000.0)
    first, late = turn(one, created_at=1000.0), turn(one, created_at=1000.0)
    await writer.commit(one, first)
    assert await turns.end_session(one.tenant_id, one.id, "client_done")
    ended = await database.fetchval("SELECT ended_at FROM sessions")
    await writer.commit(one, late)
    assert await turns.close_idle(3600) == 1
    rows = await database.fetch("SELECT turn_id, outcome, reason FROM verdicts")
    assert {tuple(row) for row in rows} == {
        (each.id, "unscored", "no_next_state") for each in (first, late)
    }
    row = await database.fetchrow("SELECT status, end_reason, ended_at FROM sessions")
    assert tuple(row) == ("closed", "client_done", ended)


async def test_look_ups_that_come_at_once_are_one_query_and_each_finds_its_own(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
):
    database, writer, turns = parts
    asked: list[int] = []
    look_up = database.look_up

    async def counted(sql: str, *values: object, timeout_s: float):
        asked.append(len(json.loads(str(values[0]))))
        return await look_up(sql, *values, timeout_s=timeout_s)

    monkeypatch.setattr(database, "look_up", counted)
    ours, theirs = session(), session()
    mine = [turn(ours, chain_hash=digest(str(number))) for number in range(3)]
    other = turn(theirs, chain_hash=digest("0"))
    await writer.commit(ours, *mine)
    await writer.commit(theirs, other)
    found = await asyncio.gather(
        *(turns.find_candidates(ours.tenant_id, Wanted(chains=[one.chain_hash])) for one in mine),
        turns.find_candidates(theirs.tenant_id, Wanted(chains=[digest("0"), digest("1")])),
        turns.find_candidates(ours.tenant_id, Wanted(chains=[digest("other")])),
    )
    assert [[one.turn_id for one in each] for each in found] == [
        [mine[0].id],
        [mine[1].id],
        [mine[2].id],
        [other.id],
        [],
    ]
    assert asked == [5]


async def test_who_leaves_while_it_is_looked_takes_nothing_from_the_others(parts: Parts):
    database, writer, turns = parts
    one = session()
    root = turn(one)
    await writer.commit(one, root)
    async with database.transaction() as connection:
        await connection.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
        wanted = Wanted(chains=[root.chain_hash])
        leaving = asyncio.create_task(turns.find_candidates(one.tenant_id, wanted))
        staying = asyncio.create_task(turns.find_candidates(one.tenant_id, wanted))
        await asyncio.sleep(0)
        late = asyncio.create_task(turns.find_candidates(one.tenant_id, wanted))
        await asyncio.sleep(0)
        leaving.cancel()
    for task in (staying, late):
        assert [found.turn_id for found in await task] == [root.id]
    assert leaving.cancelled()


async def test_nobody_waits_for_the_look_up_of_a_very_long_conversation(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
):
    database, writer, turns = parts
    one = session()
    root = turn(one)
    await writer.commit(one, root)
    go_on, look_up = asyncio.Event(), database.look_up

    async def held(sql: str, *values: object, timeout_s: float):
        if len(str(values[0])) > 10_000:
            await go_on.wait()
        return await look_up(sql, *values, timeout_s=timeout_s)

    monkeypatch.setattr(database, "look_up", held)
    hashes = [digest(str(number)) for number in range(200)]
    long = asyncio.create_task(
        turns.find_candidates(one.tenant_id, Wanted(chains=[*hashes, root.chain_hash]))
    )
    await asyncio.sleep(0)
    (found,) = await turns.find_candidates(one.tenant_id, Wanted(chains=[root.chain_hash]))
    assert found.turn_id == root.id
    assert not long.done()
    go_on.set()
    assert [each.turn_id for each in await long] == [root.id]


async def test_a_hanging_table_costs_no_more_than_the_patience(parts: Parts, database_url: str):
    database, _, _ = parts
    settings = database.settings.model_copy(update={"commit_timeout_s": 2.0})
    impatient = await Database.open(settings, database_url, application="test")
    turns = TurnStore(impatient, 10)
    async with database.transaction() as connection:
        await connection.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
        wanted = Wanted(chains=[digest("x")])
        asked = [asyncio.create_task(turns.find_candidates(new_id(), wanted)) for _ in range(65)]
        found = await asyncio.gather(*asked, return_exceptions=True)
    # Also of the one that waited for the query before it.
    assert {type(each) for each in found} == {StoreUnavailable}
    assert await turns.find_candidates(new_id(), Wanted(chains=[digest("x")])) == []
    await impatient.close()


async def test_a_look_up_does_not_outlive_the_database(parts: Parts, database_url: str):
    database, _, _ = parts
    closed = await Database.open(database.settings, database_url, application="test")
    turns = TurnStore(closed, 10)
    wanted = Wanted(chains=[digest("x")])
    assert await turns.find_candidates(new_id(), wanted) == []
    async with database.transaction() as connection:
        await connection.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
        asked = [asyncio.create_task(turns.find_candidates(new_id(), wanted)) for _ in range(2)]
        await asyncio.sleep(0.1)
        await closed.close()
        found = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(each) for each in found} == {StoreUnavailable}


async def test_names_that_postgres_cannot_hold_are_found_as_they_were_stored(parts: Parts):
    _, writer, turns = parts
    one = session(external_id="a\0b")
    await writer.commit(one)
    assert (await turns.named_sessions(one.tenant_id, ["a\0b"]))["a\0b"].id == one.id
    assert replace(one).external_id == "a\0b"
