"""What is committed is durable, once, and one bad row fails alone; also while Postgres is away."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from gateway.config import DatabaseSettings
from gateway.errors import StoreError, StoreUnavailable
from gateway.local.postgres import EmbeddedPostgres
from gateway.records import FeedbackRecord, Sampling, TurnKind, new_id
from gateway.store.calls import Call
from gateway.store.database import Database, migrate
from gateway.store.lookups import PLANNER
from gateway.store.packing import unpack_ids, unpack_logprobs
from gateway.store.spool import Spool
from gateway.store.statements import ALL_AT_ONCE, NEXT_STATES_AT_ONCE, TURNS_AT_ONCE
from gateway.store.writer import TurnWriter, write
from tests.factories import next_state, session, turn


@pytest.fixture
async def writing(database_url: str, tmp_path: Path) -> AsyncIterator[tuple[Database, TurnWriter]]:
    settings = DatabaseSettings(spool=tmp_path / "spool")
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    yield database, writer
    await writer.close()
    await database.close()


async def count(database: Database, table: str, where: str = "true") -> int:
    found: int = await database.fetchval(f"SELECT count(*) FROM {table} WHERE {where}")
    return found


async def eventually(check, expected) -> None:
    async with asyncio.timeout(120):
        while await check() != expected:
            await asyncio.sleep(0.05)


async def test_a_turn_is_stored_as_it_is(writing):
    database, writer = writing
    one = session(external_id="chat-1", client="agent/1", user="u1")
    first = turn(one, tools=({"type": "function"},), stream_mismatch=True)
    await writer.commit(one, first)
    row = await database.fetchrow("SELECT * FROM turns")
    assert row is not None
    assert row["id"] == first.id
    assert list(unpack_ids(row["prompt_ids"])) == [1, 2, 3]
    assert list(unpack_ids(row["sampled_ids"])) == [10, 11, 12, 13]
    assert list(unpack_logprobs(row["logprobs"])) == [-0.5, -1.0, -0.25, -2.0]
    assert row["messages"] == [{"role": "user", "content": "Hello?"}]
    assert row["reply"] == {"role": "assistant", "content": "Hello."}
    assert row["spans"] == [[3, 0, 4]]
    assert (row["version_min"], row["version_max"]) == (3, 3)
    assert row["sampling"] == {"temperature": 1.0, "top_p": 1.0, "max_tokens": 64}
    assert (row["prompt_len"], row["shared_len"], row["completion_len"]) == (3, 0, 4)
    assert row["created_at"].timestamp() == pytest.approx(first.created_at, abs=1e-5)
    stored = await database.fetchrow("SELECT * FROM sessions")
    assert stored is not None
    assert (stored["external_id"], stored["end_user"], stored["status"]) == ("chat-1", "u1", "open")


async def test_what_tells_retries_apart_and_what_clients_echo_is_stored_once(writing):
    database, writer = writing
    one = session()
    left = turn(one, idempotency_key="k\0", delivered=False, response_store=False)
    fields = {"metadata": {"a": "b\0"}, "temperature": 1.0, "instructions": True}
    called = turn(one, echoes=("call-b", "call-a"), response_fields=fields)
    for _ in range(2):
        await writer.commit(one, left, called)
    row = await database.fetchrow(
        "SELECT idempotency_key, delivered, response_store FROM turns WHERE id = $1", left.id
    )
    assert tuple(row) == ("k\ufffd", False, False)
    rows = await database.fetch("SELECT id, response_fields FROM turns")
    assert {row["id"]: row["response_fields"] for row in rows} == {
        left.id: None,
        called.id: {**fields, "metadata": {"a": "b\ufffd"}},
    }
    # It is nothing, not the word null of JSON.
    assert await database.fetchval("SELECT count(response_fields) FROM turns") == 1
    rows = await database.fetch("SELECT tenant_id, id, turn_id FROM echoes ORDER BY id")
    assert [tuple(row) for row in rows] == [
        (one.tenant_id, "call-a", called.id),
        (one.tenant_id, "call-b", called.id),
    ]


@pytest.mark.parametrize("apart", [False, True])
async def test_what_clients_echo_is_stored_in_one_order_and_as_it_can_be(writing, apart: bool):
    database, writer = writing
    one = session()
    ids = sorted((new_id(), new_id()))
    first = turn(one, id=ids[0], echoes=("b\0", "é", "a", "B"))
    second = turn(one, id=ids[1], echoes=("a", "\ud800", "a"))
    await writer.commit(one, second, first, *[next_state(first)] * apart)
    rows = await database.fetch("SELECT id, turn_id FROM echoes ORDER BY ctid")
    # By code points, whatever the database sorts by; then in the order of their ids.
    assert [tuple(row) for row in rows] == [
        ("?", second.id),
        ("B", first.id),
        ("a", first.id),
        ("a", second.id),
        ("b\ufffd", first.id),
        ("é", first.id),
    ]


async def test_a_new_session_is_seen_when_its_last_turn_is(writing):
    database, writer = writing
    one, other = session(seen_at=1000.0), session(seen_at=5000.0)
    turns = [turn(one, created_at=at) for at in (2000.0, 3000.5, 1500.0)]
    await writer.commit(one, *turns, other, turn(other, created_at=4000.0))
    rows = await database.fetch(
        "SELECT id, extract(epoch FROM last_seen)::float8 AS at FROM sessions"
    )
    assert {row["id"]: row["at"] for row in rows} == {one.id: 3000.5, other.id: 5000.0}


async def test_a_commit_that_is_repeated_changes_nothing(writing):
    database, writer = writing
    one = session()
    first = turn(one)
    state = next_state(first)
    for _ in range(2):
        await writer.commit(one, first)
        await writer.commit(state)
    assert await count(database, "turns") == 1
    assert await count(database, "next_states") == 1
    assert await count(database, "judgements") == 1


async def test_many_at_once_share_few_transactions(writing):
    database, writer = writing
    one = session()
    await writer.commit(one)
    before = await database.fetchval("SELECT pg_current_xact_id()::text::bigint")
    await asyncio.gather(*(writer.commit(one, turn(one)) for _ in range(200)))
    after = await database.fetchval("SELECT pg_current_xact_id()::text::bigint")
    assert await count(database, "turns") == 200
    # 200 calls in batches of at most 64; the first may go alone, and asking counts too.
    assert after - before <= 10


async def test_what_ends_soon_after_a_commit_of_several_goes_together(writing, monkeypatch):
    database, writer = writing
    monkeypatch.setattr("gateway.store.writer._TOGETHER_S", 2.0)
    one = session()
    first, second, third, fourth = (turn(one) for _ in range(4))
    await asyncio.gather(writer.commit(one, first), writer.commit(one, second))
    later = asyncio.create_task(writer.commit(one, third))
    await asyncio.sleep(0.2)
    await asyncio.gather(later, writer.commit(one, fourth))
    rows = await database.fetch("SELECT id, xmin::text AS transaction FROM turns")
    by = {row["id"]: row["transaction"] for row in rows}
    assert by[first.id] == by[second.id] != by[third.id] == by[fourth.id]


async def test_turns_that_end_one_by_one_wait_for_nothing(writing, monkeypatch):
    database, writer = writing
    monkeypatch.setattr("gateway.store.writer._TOGETHER_S", 3600.0)
    one = session()
    for _ in range(3):
        await writer.commit(one, turn(one))
    assert await count(database, "turns") == 3


async def test_what_one_request_writes_is_one_statement(writing):
    _, writer = writing
    one = session()
    unknown = turn(one, kind=TurnKind.UNKNOWN, echoes=("call-a",))
    await writer.commit(one, unknown)
    asked: list[str] = []
    writer._connection.add_query_logger(lambda query: asked.append(query.query))
    await writer.commit(next_state(unknown))
    await writer.commit(one, turn(one, unknown))
    assert len(asked) == 2


@pytest.mark.parametrize(
    "sql", [TURNS_AT_ONCE, NEXT_STATES_AT_ONCE, ALL_AT_ONCE], ids=["turns", "states", "all"]
)
async def test_a_plan_that_is_made_while_tables_are_empty_reads_no_table_whole(
    database: Database, sql: dict[str, str]
):
    connection = await database.connect(**PLANNER)
    await connection.execute(f"PREPARE written AS {sql[database.revision]}")
    parameters = max(map(int, re.findall(r"\$(\d+)", sql[database.revision])))
    values = ", ".join(["NULL"] * parameters)
    plan = await connection.fetchval(f"EXPLAIN (FORMAT json) EXECUTE written({values})")
    await connection.close()

    def nodes(node: dict) -> list[dict]:
        return [node, *(below for child in node.get("Plans", ()) for below in nodes(child))]

    plans = json.loads(plan) if isinstance(plan, str) else plan
    found = nodes(plans[0]["Plan"])
    assert "Seq Scan" not in {node["Node Type"] for node in found}
    by = {node["Index Name"]: node.get("Index Cond", "") for node in found if "Index Name" in node}
    keys = {"turns": "id", "sessions": "id", "next_states": "turn_id", "judgements": "turn_id"}
    keys["erasures"] = "digest"
    assert by
    for index, condition in by.items():
        assert f"{keys[index.removesuffix('_pkey')]} = " in condition


async def test_next_states_and_turns_of_many_are_written_together(writing):
    database, writer = writing
    chats = [session(external_id=f"chat-{number}") for number in range(3)]
    first = [turn(one, kind=TurnKind.UNKNOWN) for one in chats]
    side = turn(chats[0], kind=TurnKind.SIDE)
    await asyncio.gather(
        *(writer.commit(one, record) for one, record in zip(chats, first, strict=True))
    )
    await writer.commit(next_state(side))
    follower = next_state(first[0])
    # The first goes alone, the others are one batch.
    await asyncio.gather(
        writer.commit(turn(chats[0])),
        writer.commit(follower),
        writer.commit(next_state(first[0], role="tool")),
        writer.commit(next_state(first[1], judge=False)),
        writer.commit(next_state(first[2], tenant_id=new_id())),
        writer.commit(side),
        *(writer.commit(one, turn(one)) for one in chats),
    )
    assert await count(database, "turns") == 8
    rows = await database.fetch("SELECT turn_id, following_id FROM next_states")
    assert {row["turn_id"] for row in rows} == {first[0].id, first[1].id, side.id}
    assert follower.following_id in {row["following_id"] for row in rows}
    promoted = await database.fetch("SELECT id FROM turns WHERE kind_rule LIKE 'promoted%'")
    assert {row["id"] for row in promoted} == {first[0].id, first[1].id}
    jobs = await database.fetch("SELECT turn_id, state FROM judgements")
    assert {tuple(job) for job in jobs} == {(first[0].id, "queued"), (side.id, "skipped")}


async def test_the_session_is_seen_again_and_reopened(writing):
    database, writer = writing
    one = session(seen_at=1000.0)
    await writer.commit(one, turn(one, created_at=1000.0))
    await database.execute(
        "UPDATE sessions SET status = 'closed', end_reason = 'idle', ended_at = to_timestamp(1500)"
    )
    late = replace(one, seen_at=1400.0)
    await writer.commit(late, turn(late, created_at=1400.0))
    # Its turn is without a verdict: it is looked at once more, and ended as before.
    row = await database.fetchrow("SELECT status, end_reason FROM sessions")
    assert tuple(row) == ("open", "idle")
    again = replace(one, seen_at=2000.0)
    await writer.commit(again, turn(again, created_at=2000.0))
    row = await database.fetchrow(
        "SELECT status, end_reason, extract(epoch FROM first_seen)::int,"
        " extract(epoch FROM last_seen)::int FROM sessions"
    )
    assert tuple(row) == ("open", None, 1000, 2000)


async def test_two_gateways_that_mint_a_session_for_one_name_end_in_one(writing):
    database, writer = writing
    ours = session(external_id="chat")
    theirs = session(external_id="chat", tenant_id=ours.tenant_id, key_id=ours.key_id)
    stranger = session(external_id="chat")
    await asyncio.gather(
        writer.commit(ours, turn(ours)),
        writer.commit(theirs, turn(theirs)),
        writer.commit(stranger, turn(stranger)),
    )
    assert await count(database, "sessions") == 2
    rows = await database.fetch(
        "SELECT t.tenant_id, count(DISTINCT t.session_id), count(*) FROM turns t"
        " JOIN sessions s ON s.id = t.session_id GROUP BY 1"
    )
    assert {tuple(row) for row in rows} == {(ours.tenant_id, 1, 2), (stranger.tenant_id, 1, 1)}


async def test_a_bad_row_fails_alone(writing):
    database, writer = writing
    one = session()
    bad = turn(one, chain_hash=b"short", trainable=False, untrainable_reason="x")
    results = await asyncio.gather(
        writer.commit(one, turn(one)),
        writer.commit(bad),
        writer.commit(turn(one)),
        return_exceptions=True,
    )
    assert results[0] is True
    assert results[2] is True
    assert isinstance(results[1], StoreError)
    assert "chain_hash_is_sha256" in results[1].message
    assert "Hello" not in results[1].message
    assert await count(database, "turns") == 2
    assert not writer.spooling


async def test_one_call_is_stored_whole_or_not_at_all(writing):
    database, writer = writing
    one = session()
    bad = turn(one, chain_hash=b"short", trainable=False, untrainable_reason="x")
    with pytest.raises(StoreError):
        await writer.commit(one, turn(one), bad)
    assert await count(database, "turns") == 0
    assert await count(database, "sessions") == 0


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"logprobs": (-0.5, -1.0, -0.25)}, "length_mismatch"),
        ({"spans": ()}, "length_mismatch"),
        ({"logprobs": (-0.5, -1.0, -0.25, float("nan"))}, "logprob_not_finite"),
    ],
)
async def test_a_turn_that_cannot_be_trained_on_is_kept_and_says_why(writing, values, reason):
    database, writer = writing
    one = session()
    await writer.commit(one, turn(one, **values))
    row = await database.fetchrow("SELECT trainable, untrainable_reason, sampled_ids FROM turns")
    assert row is not None
    assert tuple(row)[:2] == (False, reason)
    assert list(unpack_ids(row["sampled_ids"])) == [10, 11, 12, 13]


async def test_ids_that_do_not_fit_are_refused_before_anything_is_written(writing):
    database, writer = writing
    one = session()
    with pytest.raises(StoreError, match="token ids"):
        await writer.commit(one, turn(one, sampled_ids=(2**31,), logprobs=(-1.0,)))
    assert await count(database, "turns") == 0


async def test_what_asyncpg_refuses_fails_alone_and_quotes_nobody(writing):
    database, writer = writing
    one = session()
    results = await asyncio.gather(
        writer.commit(one, turn(one)),
        writer.commit(turn(one, depth=2**31)),
        writer.commit(turn(one)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [bool, StoreError, bool]
    assert "Hello" not in str(results[1])
    assert await count(database, "turns") == 2


async def test_a_failure_of_our_own_ends_neither_the_writer_nor_a_wait(writing, monkeypatch):
    database, writer = writing
    one = session()

    async def broken(connection, calls, revision):
        await connection.execute("INSERT INTO events (name, detail) VALUES ('half', '{}')")
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("gateway.store.writer.store", broken)
        first = turn(one)
        with pytest.raises(StoreError, match="a bug"):
            # What follows a turn of the same commit is written step by step.
            await writer.commit(one, first, next_state(first))
    await writer.commit(one, turn(one))
    assert await count(database, "turns") == 1
    # Nothing of the broken transaction was committed with the next one.
    assert await count(database, "events") == 0


async def test_texts_that_postgres_has_no_form_for_are_mended(writing):
    database, writer = writing
    one = session(client="a\0b")
    said = {"role": "assistant", "content": "x\0y\ud800"}
    await writer.commit(one, turn(one, reply=said, sampling=Sampling(stop=("a\0",))))
    assert (await database.fetchval("SELECT reply ->> 'content' FROM turns")) == "x\ufffdy?"
    assert (await database.fetchval("SELECT sampling -> 'stop' ->> 0 FROM turns")) == "a\ufffd"
    assert (await database.fetchval("SELECT client FROM sessions")) == "a\ufffdb"


async def test_the_first_follower_wins_and_wakes_the_judge(writing):
    database, writer = writing
    woken: asyncio.Queue[str] = asyncio.Queue()
    await database.listen("nextstate_judge", woken.put_nowait)
    one = session()
    first = turn(one)
    await writer.commit(one, first)
    assert woken.empty()
    winner = next_state(first)
    await writer.commit(winner, next_state(first, role="tool"))
    await writer.commit(next_state(first, role="tool"))
    await asyncio.wait_for(woken.get(), 120)
    row = await database.fetchrow("SELECT following_id, role, messages FROM next_states")
    assert tuple(row) == (
        winner.following_id,
        "user",
        [{"role": "user", "content": "Thanks!"}],
    )
    rows = await database.fetch("SELECT turn_id, round, state FROM judgements")
    assert [tuple(row) for row in rows] == [(first.id, 1, "queued")]


async def test_no_job_for_a_side_turn_nor_where_none_is_wanted(writing):
    database, writer = writing
    one = session()
    side = turn(one, kind=TurnKind.SIDE)
    main = turn(one)
    await writer.commit(one, side, main)
    await writer.commit(next_state(side), next_state(main, judge=False))
    assert await count(database, "next_states") == 2
    assert await count(database, "judgements") == 0


async def test_a_turn_of_another_tenant_gets_neither_next_state_nor_feedback(writing):
    database, writer = writing
    one = session()
    first = turn(one)
    await writer.commit(one, first)
    stranger = new_id()
    await writer.commit(next_state(first, tenant_id=stranger))
    await writer.commit(
        FeedbackRecord(id=new_id(), tenant_id=stranger, turn_id=first.id, score=-1.0)
    )
    assert await count(database, "next_states") == 0
    assert await count(database, "feedback") == 0
    assert await count(database, "judgements") == 0


@pytest.mark.parametrize("late", [False, True])
async def test_an_unknown_turn_that_is_extended_becomes_main(writing, late: bool):
    database, writer = writing
    one = session()
    unknown = turn(one, kind=TurnKind.UNKNOWN)
    other = turn(one, kind=TurnKind.UNKNOWN)
    calls = [(one, unknown, other), (next_state(unknown),)]
    for records in reversed(calls) if late else calls:
        await writer.commit(*records)
    rows = await database.fetch("SELECT id, kind, kind_rule FROM turns")
    assert {row["id"]: (row["kind"], row["kind_rule"]) for row in rows} == {
        unknown.id: ("main", "promoted_when_extended"),
        other.id: ("unknown", "header"),
    }
    assert await count(database, "judgements") == 1


async def test_a_side_turn_that_arrives_after_its_follower_is_not_judged(writing):
    database, writer = writing
    one = session()
    side = turn(one, kind=TurnKind.SIDE)
    await writer.commit(next_state(side))
    assert await count(database, "judgements", "state = 'queued'") == 1
    await writer.commit(one, side)
    assert await count(database, "judgements", "state = 'skipped' AND reason = 'side'") == 1


async def test_feedback_is_stored_once_and_queues_another_round(writing):
    database, writer = writing
    one = session()
    first = turn(one)
    await writer.commit(one, first, next_state(first))
    said = FeedbackRecord(
        id=new_id(), tenant_id=one.tenant_id, turn_id=first.id, score=0.5, idempotency_key="k"
    )
    await writer.commit(said)
    assert await count(database, "judgements") == 1
    await database.execute("UPDATE judgements SET state = 'done'")
    await writer.commit(replace(said, id=new_id()))
    assert await count(database, "feedback") == 1
    assert await count(database, "judgements") == 1
    await writer.commit(replace(said, id=new_id(), idempotency_key="k2"))
    rows = await database.fetch("SELECT round, state FROM judgements ORDER BY round")
    assert [tuple(row) for row in rows] == [(1, "done"), (2, "queued")]


async def test_a_score_out_of_range_is_refused(writing):
    _, writer = writing
    said = FeedbackRecord(id=new_id(), tenant_id=new_id(), turn_id=new_id(), score=1.5)
    with pytest.raises(StoreError, match="score_in_range"):
        await writer.commit(said)


async def test_a_caller_that_gives_up_does_not_undo_the_turn(writing):
    database, writer = writing
    one = session()
    waiting = asyncio.create_task(writer.commit(one, turn(one)))
    await asyncio.sleep(0)
    waiting.cancel()
    await eventually(lambda: count(database, "turns"), 1)


async def test_closing_writes_what_is_queued(database_url: str, tmp_path: Path):
    settings = DatabaseSettings(spool=tmp_path)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    one = session()
    waiting = [asyncio.create_task(writer.commit(one, turn(one))) for _ in range(100)]
    await asyncio.sleep(0)
    await writer.close()
    await asyncio.gather(*waiting)
    assert await count(database, "turns") == 100
    with pytest.raises(StoreUnavailable, match="closed"):
        await writer.commit(one)
    await database.close()


async def test_a_hanging_postgres_is_waited_for_no_longer_than_allowed(
    database_url: str, tmp_path: Path
):
    settings = DatabaseSettings(spool=tmp_path, commit_timeout_s=2.0)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    one = session()
    await writer.commit(one)
    blocker = await asyncpg.connect(database_url)
    blocking = blocker.transaction()
    await blocking.start()
    await blocker.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
    await asyncio.wait_for(asyncio.gather(*(writer.commit(turn(one)) for _ in range(5))), 60)
    assert (writer.spooling, writer.spooled) == (True, 5)
    await blocking.rollback()
    await eventually(lambda: count(database, "turns"), 5)
    await eventually(lambda: asyncio.sleep(0, writer.spooling), False)
    await blocker.close()
    await writer.close()
    await database.close()


async def test_nothing_is_sent_past_a_deadline(database: Database):
    connection = await database.connect(**PLANNER)
    one = session()
    for records in ((one,), (one, first := turn(one), next_state(first))):
        with pytest.raises(TimeoutError):
            await write(connection, [Call(records)], database.revision, 0.0)
    await connection.close()
    assert await count(database, "sessions") == 0


async def test_a_stopped_backend_is_cut_off(database_url: str, tmp_path: Path):
    settings = DatabaseSettings(spool=tmp_path, commit_timeout_s=2.0)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    one = session()
    await writer.commit(one)
    pid = writer._connection.get_server_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.wait_for(writer.commit(turn(one)), 60)
        await eventually(lambda: count(database, "turns"), 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    await writer.close()
    await database.close()


@pytest.fixture
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server that the test may stop; durable, for it to lose nothing it acknowledged."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("pg"))
    server.start()
    yield server
    server.stop()


async def test_nothing_is_lost_or_doubled_while_postgres_is_down(
    own_postgres: EmbeddedPostgres, tmp_path: Path
):
    await migrate(own_postgres.url)
    settings = DatabaseSettings(spool=tmp_path, commit_timeout_s=2.0)
    database = await Database.open(settings, own_postgres.url, application="test")
    writer = await TurnWriter.open(database)
    one = session(external_id="chat")
    turns = [turn(one) for _ in range(400)]

    async def agent(mine) -> None:
        for record in mine:
            await writer.commit(one, record, next_state(record))
            await asyncio.sleep(0.005)

    agents = [asyncio.create_task(agent(turns[start::8])) for start in range(8)]
    await asyncio.sleep(0.1)
    await asyncio.to_thread(own_postgres.stop)
    await asyncio.wait_for(asyncio.gather(*agents), 120)
    assert writer.spooling
    assert Spool(tmp_path, max_bytes=1).waiting()
    # This process goes too, and the next one finds the spool.
    await writer.close()
    await database.close()

    await asyncio.to_thread(own_postgres.start)
    database = await Database.open(settings, own_postgres.url, application="test")
    writer = await TurnWriter.open(database)
    await eventually(lambda: count(database, "turns"), 400)
    rows = await database.fetch("SELECT id FROM turns")
    assert {row["id"] for row in rows} == {record.id for record in turns}
    await eventually(lambda: count(database, "judgements"), 400)
    assert await count(database, "sessions") == 1
    await eventually(lambda: asyncio.to_thread(Spool(tmp_path, max_bytes=1).waiting), False)
    assert not writer.spooling

    # Down and up again within one process.
    await asyncio.to_thread(own_postgres.stop)
    more = [turn(one) for _ in range(20)]
    spooled = await asyncio.gather(*(writer.commit(record) for record in more))
    assert spooled == [False] * 20
    await asyncio.to_thread(own_postgres.start)
    await eventually(lambda: count(database, "turns"), 420)
    await eventually(lambda: asyncio.sleep(0, writer.spooling), False)
    assert await writer.commit(turn(one))
    assert await count(database, "turns") == 421
    await writer.close()
    await database.close()


async def test_a_spooled_row_that_is_refused_is_set_aside(database_url: str, tmp_path: Path):
    settings = DatabaseSettings(spool=tmp_path, commit_timeout_s=2.0)
    database = await Database.open(settings, database_url, application="test")
    blocker = await asyncpg.connect(database_url)
    blocking = blocker.transaction()
    await blocking.start()
    await blocker.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
    writer = await TurnWriter.open(database)
    one = session()
    bad = turn(one, chain_hash=b"short", trainable=False, untrainable_reason="x")
    await writer.commit(one, bad)
    await writer.commit(one, turn(one))
    await blocking.rollback()
    await eventually(lambda: count(database, "turns"), 1)
    await eventually(lambda: asyncio.to_thread(Spool(tmp_path, max_bytes=1).waiting), False)
    assert (tmp_path / "rejected.frames").stat().st_size > 0
    await blocker.close()
    await writer.close()
    await database.close()


async def test_with_no_room_in_the_spool_the_caller_is_told(database_url: str, tmp_path: Path):
    settings = DatabaseSettings(spool=tmp_path, commit_timeout_s=2.0, spool_bytes=10)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    one = session()
    blocker = await asyncpg.connect(database_url)
    blocking = blocker.transaction()
    await blocking.start()
    await blocker.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(StoreUnavailable, match="limit of 10 bytes"):
        await writer.commit(one, turn(one))
    await blocking.rollback()
    await blocker.close()
    await writer.close()
    await database.close()


_GATEWAY = """
import asyncio, sys
from pathlib import Path
from gateway.config import DatabaseSettings
from gateway.store.database import Database
from gateway.store.writer import TurnWriter
from tests.factories import session, turn

async def main():
    settings = DatabaseSettings(spool=Path(sys.argv[2]), commit_timeout_s=1.0)
    database = await Database.open(settings, sys.argv[1], application="test")
    writer = await TurnWriter.open(database)
    one = session()
    async def agent():
        while True:
            record = turn(one)
            await writer.commit(one, record)
            print("acknowledged", record.id, flush=True)
    await asyncio.gather(*(agent() for _ in range(4)))

asyncio.run(main())
"""


async def test_a_gateway_killed_at_any_moment_loses_no_acknowledged_turn(
    own_postgres: EmbeddedPostgres, tmp_path: Path
):
    await migrate(own_postgres.url)
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _GATEWAY, own_postgres.url, str(tmp_path),
        stdout=subprocess.PIPE, limit=1 << 24, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert gateway.stdout is not None
    acknowledged: list[bytes] = []
    async with asyncio.timeout(60):
        while len(acknowledged) < 100:
            acknowledged.append(await gateway.stdout.readline())
        # While Postgres goes down and turns begin to be spooled.
        await asyncio.to_thread(own_postgres.stop)
        while len(acknowledged) < 1000 or not Spool(tmp_path, max_bytes=1).waiting():
            acknowledged.append(await gateway.stdout.readline())
        gateway.kill()
        rest = await gateway.stdout.read()
        await gateway.wait()
    acknowledged += rest[: rest.rfind(b"\n") + 1].splitlines()
    await asyncio.to_thread(own_postgres.start)
    settings = DatabaseSettings(spool=tmp_path)
    database = await Database.open(settings, own_postgres.url, application="test")
    writer = await TurnWriter.open(database)
    await eventually(lambda: asyncio.to_thread(Spool(tmp_path, max_bytes=1).waiting), False)
    stored = {str(row["id"]) for row in await database.fetch("SELECT id FROM turns")}
    told = {line.split()[1].decode() for line in acknowledged if line.startswith(b"acknow")}
    assert len(told) > 500
    assert told <= stored
    # At most what each agent had in hand was stored and not told.
    assert len(stored) <= len(told) + 4
    await writer.close()
    await database.close()
