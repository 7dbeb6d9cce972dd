"""A user or a session goes out of every table, and what comes in late does not come back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from msgspec.structs import replace

from gateway.config import DatabaseSettings
from gateway.errors import StoreUnavailable
from gateway.records import (
    FeedbackRecord,
    JudgeJob,
    Judgement,
    SessionRecord,
    Teaching,
    TurnRecord,
    new_id,
)
from gateway.store import erasure as module
from gateway.store import erasures
from gateway.store.audits import Audits
from gateway.store.batch import store
from gateway.store.calls import Call
from gateway.store.database import Database
from gateway.store.erasure import Erasure
from gateway.store.frames import Storable, encode
from gateway.store.schema import Base
from gateway.store.spool import Spool
from gateway.store.teachings import put_teaching
from gateway.store.turn_rows import OF_TURNS
from gateway.store.writer import TurnWriter, write
from tests.factories import next_state, session, turn

#: Tables that say nothing of what one user or session did.
OF_NOBODY = {
    "tenants",
    "lineages",
    "api_keys",
    "train_steps",
    "policies",
    "swaps",
    "workers",
    "settings",
    "retention_marks",
    # Names, counts and ids alone; entries are kept for good.
    "events",
    "audit_entries",
    # What keeps the rest out: digests, for some weeks.
    "erasures",
}
#: What ties a row to a turn or a session.
TIES = {"turn_id", "session_id", "following_id", "parent_id", "end_user", "messages", "text"}


def test_no_table_is_forgotten() -> None:
    """A new table is either of turns, or named here as one that says nothing of anybody."""
    tables = Base.metadata.tables
    assert {*tables} == {*OF_TURNS, "turns", "sessions"} | OF_NOBODY
    for name in OF_TURNS:
        assert "turn_id" in tables[name].columns
    for name in OF_NOBODY:
        assert not TIES & {*tables[name].columns.keys()}, name


class House:
    """A database with one tenant, and what its users did."""

    def __init__(self, database: Database, writer: TurnWriter) -> None:
        self.database, self.writer = database, writer
        self.tenant, self.lineage, self.step = new_id(), new_id(), new_id()

    async def furnish(self) -> None:
        await self.database.execute(
            "INSERT INTO tenants (id, name) VALUES ($1, 'one')", self.tenant
        )
        await self.database.execute(
            "INSERT INTO lineages (id, name, base_model, kind) VALUES ($1, 'l', 'm', 'lora')",
            self.lineage,
        )
        await self.database.execute(
            "INSERT INTO train_steps (id, lineage_id, epoch, from_version, to_version, metrics,"
            " started_at, ended_at) VALUES ($1, $2, 1, 6, 7, '{}', now(), now())",
            self.step, self.lineage,
        )  # fmt: skip

    async def talk(
        self, user: str | None, turns: int = 2, **values: Any
    ) -> tuple[SessionRecord, list[TurnRecord]]:
        """A session with a row in every table for each turn."""
        of = session(tenant_id=self.tenant, lineage_id=self.lineage, user=user, **values)
        talked: list[TurnRecord] = []
        for number in range(turns):
            one = turn(of, talked[-1] if talked else None, echoes=(f"{of.id} {number}",))
            said = FeedbackRecord(id=new_id(), tenant_id=self.tenant, turn_id=one.id, score=1.0)
            await self.writer.commit(of, one)
            await self.writer.commit(next_state(one), said)
            async with self.database.transaction() as connection:
                await put_teaching(connection, one.id, 1, self.tenant, self.lesson(one))
                await connection.execute(
                    "INSERT INTO samples (id, turn_id, session_id, lineage_id, method, score,"
                    " version_min, arrived_at, state, step_id)"
                    " VALUES ($1, $2, $3, $4, 'binary_rl', 1, 3, now(), 'trained', $5)",
                    new_id(), one.id, of.id, self.lineage, self.step,
                )  # fmt: skip
                await connection.execute(
                    "INSERT INTO verdicts (turn_id, outcome, reason, step_id, version)"
                    " VALUES ($1, 'trained', 'trained', $2, 7)",
                    one.id, self.step,
                )  # fmt: skip
            talked.append(one)
        return of, talked

    def lesson(self, one: TurnRecord) -> Teaching:
        return Teaching(
            teacher="base", lineage_id=self.lineage, version=0, model="m",
            hint="do", prompt_len=3, logprobs=one.logprobs,
        )  # fmt: skip

    async def left(self) -> dict[str, int]:
        """How many rows each table of turns has, and how many sessions there are."""
        return {
            table: await self.database.fetchval(f"SELECT count(*) FROM {table}")
            for table in (*OF_TURNS, "turns", "sessions")
        }

    async def mentions(self, *ids: UUID) -> list[str]:
        """Tables, but for the audit, in which any of these ids stands."""
        found = []
        for table in {*Base.metadata.tables} - {"audit_entries"}:
            pattern = "|".join(str(id_) for id_ in ids)
            sql = f"SELECT EXISTS (SELECT FROM {table} r WHERE r::text ~ $1)"
            if await self.database.fetchval(sql, pattern):
                found.append(table)
        return found


@pytest.fixture
async def house(database: Database):
    writer = await TurnWriter.open(database)
    made = House(database, writer)
    await made.furnish()
    yield made
    await writer.close()


async def test_a_user_goes_out_of_every_table(house: House) -> None:
    first, one = await house.talk("ann")
    second, two = await house.talk("ann")
    # What a session of hers called has nobody's name.
    third, three = await house.talk(None, parent_session_id=second.id)
    _, others = await house.talk("bob")
    before = await house.left()
    assert before == {**dict.fromkeys((*OF_TURNS, "turns"), 8), "sessions": 4}
    erased = await Erasure(house.database).user(house.tenant, "ann", "cli")

    after = await house.left()
    assert {table: count - after[table] for table, count in before.items()} == {
        **dict.fromkeys((*OF_TURNS, "turns"), 6),
        "sessions": 3,
    }
    assert after == {**dict.fromkeys((*OF_TURNS, "turns"), 2), "sessions": 1}
    assert {row["id"] for row in await house.database.fetch("SELECT id FROM turns")} == {
        other.id for other in others
    }
    gone = [record.id for record in (first, second, third, *one, *two, *three)]
    assert await house.mentions(*gone) == []
    assert erased.sessions == 3
    assert erased.rows == {**dict.fromkeys((*OF_TURNS, "turns"), 6), "sessions": 3}
    version = {"lineage": "l", "lineage_id": str(house.lineage), "version": 7}
    assert erased.versions == [version]

    (entry,) = await house.database.fetch("SELECT * FROM audit_entries")
    assert entry["id"] == erased.entry_id
    assert (entry["actor"], entry["action"], entry["tenant_id"]) == ("cli", "erasure", house.tenant)
    assert entry["subject"]["versions"] == [version]
    assert entry["subject"]["rows"] == erased.rows
    assert "ann" not in str(entry["subject"])

    # Once more does no harm, and still says what she was trained into.
    again = await Erasure(house.database).user(house.tenant, "ann", "cli")
    assert (again.sessions, again.rows, again.versions) == (0, {}, [version])
    assert await house.left() == after


async def test_a_session_goes_and_those_of_its_user_stay(house: House) -> None:
    first, _ = await house.talk("ann")
    second, _ = await house.talk("ann")
    erasure = Erasure(house.database)
    # No other tenant reaches it.
    assert await erasure.session(new_id(), first.id, "cli") is None
    erased = await erasure.session(house.tenant, first.id, "cli")
    assert erased is not None
    assert erased.rows["turns"] == 2
    rows = await house.database.fetch("SELECT id FROM sessions")
    assert [row["id"] for row in rows] == [second.id]
    again = await erasure.session(house.tenant, first.id, "cli")
    assert again is not None
    assert (again.rows, again.versions) == ({}, erased.versions)
    assert await erasure.session(house.tenant, new_id(), "cli") is None


async def test_words_that_followed_a_turn_of_another_session_go_too(house: House) -> None:
    _, (_, leaf) = await house.talk("bob")
    forked = session(tenant_id=house.tenant, lineage_id=house.lineage, user="ann")
    one = turn(forked, leaf)
    await house.database.execute("DELETE FROM next_states WHERE turn_id = $1", leaf.id)
    await house.writer.commit(forked, one)
    await house.writer.commit(next_state(leaf, following_id=one.id))
    await Erasure(house.database).user(house.tenant, "ann", "cli")
    assert await house.mentions(one.id, forked.id) == []
    assert (await house.left())["turns"] == 2


async def test_many_turns_go_in_batches_and_what_was_cut_off_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.talk("ann", turns=7)
    monkeypatch.setattr(module, "_TURNS_AT_ONCE", 2)
    real, batches = module._batch, 0

    async def cut_off(*values: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 2:
            # Somebody else had a row of it: it is tried again.
            raise asyncpg.DeadlockDetectedError("deadlock")
        if batches == 4:
            raise StoreUnavailable("gone")
        return await real(*values)

    monkeypatch.setattr(module, "_batch", cut_off)
    erasure = Erasure(house.database)
    with pytest.raises(StoreUnavailable):
        await erasure.user(house.tenant, "ann", "cli")
    assert (await house.left())["turns"] == 3
    # What was done is on record, with what it was trained into.
    (subject,) = [r[0] for r in await house.database.fetch("SELECT subject FROM audit_entries")]
    assert subject["rows"]["turns"] == 4
    assert [one["version"] for one in subject["versions"]] == [7]
    monkeypatch.setattr(module, "_batch", real)
    done = await erasure.user(house.tenant, "ann", "cli")
    assert done.rows["turns"] == 3
    assert [one["version"] for one in done.versions] == [7]
    assert set((await house.left()).values()) == {0}


async def replayed(house: House, home: Path, *calls: tuple[Storable, ...]) -> None:
    """What a gateway with these calls in its spool stores once it is back."""
    database = house.database
    before, database.settings = database.settings, DatabaseSettings(spool=home / "spool")
    try:
        writer = TurnWriter(database)
        writer._spool.append([encode(call) for call in calls])
        await writer._drain()
        assert not writer._spool.waiting()
    finally:
        database.settings = before


async def test_what_waited_in_a_spool_does_not_come_back(house: House, tmp_path: Path) -> None:
    known, (turned, leaf) = await house.talk("ann")
    # Nobody but the gateway that is away knows this one yet.
    unknown = session(tenant_id=house.tenant, lineage_id=house.lineage, user="ann")
    fresh = turn(unknown)
    follower = turn(known, leaf)
    other = session(tenant_id=house.tenant, lineage_id=house.lineage, user="bob")
    kept = turn(other)
    await Erasure(house.database).user(house.tenant, "ann", "cli")
    said = FeedbackRecord(id=new_id(), tenant_id=house.tenant, turn_id=turned.id, score=1.0)
    await replayed(
        house,
        tmp_path,
        (unknown, fresh),
        (known, follower),
        (next_state(leaf, following_id=follower.id),),
        (next_state(follower),),
        (said,),
        (other, kept),
        (next_state(kept),),
    )
    rows = await house.database.fetch("SELECT id FROM turns")
    assert [row["id"] for row in rows] == [kept.id]
    ids = (known.id, unknown.id, fresh.id, follower.id, leaf.id, turned.id)
    assert await house.mentions(*ids) == []


async def test_a_session_may_go_on_after_it_was_erased(house: House, tmp_path: Path) -> None:
    known, _ = await house.talk("ann")
    await Erasure(house.database).session(house.tenant, known.id, "cli")
    later = turn(known, created_at=time.time() + 1)
    seen = session(
        id=known.id, tenant_id=house.tenant, lineage_id=house.lineage, seen_at=time.time() + 1
    )
    await replayed(house, tmp_path, (seen, later))
    assert (await house.left())["turns"] == 1


async def test_a_request_under_way_is_erased_when_it_has_ended(house: House) -> None:
    known, (_, leaf) = await house.talk("ann")
    late = turn(known, leaf)
    fresh = session(tenant_id=house.tenant, lineage_id=house.lineage, user="ann")
    opened = turn(fresh)
    erased = await Erasure(house.database).user(house.tenant, "ann", "cli")
    later = turn(known, created_at=time.time() + 5)
    await house.writer.commit(known, late)
    await house.writer.commit(fresh, opened)
    await house.writer.commit(known, later)
    assert await Erasure(house.database).again(3600) == 2
    rows = await house.database.fetch("SELECT id FROM turns")
    assert [row["id"] for row in rows] == [later.id]
    (subject,) = [r[0] for r in await house.database.fetch("SELECT subject FROM audit_entries")]
    assert subject["rows"]["turns"] == erased.rows["turns"] + 2
    assert await Erasure(house.database).again(3600) == 0


async def test_digests_are_forgotten_after_some_weeks(house: House) -> None:
    of, _ = await house.talk("ann")
    await Erasure(house.database).user(house.tenant, "ann", "cli")
    await house.database.execute(
        "UPDATE erasures SET erased_at = now() - interval '29 days' WHERE digest = $1",
        erasures.of_id(of.id),
    )
    await house.database.execute(
        "UPDATE erasures SET erased_at = now() - interval '31 days' WHERE digest = $1",
        erasures.of_user(house.tenant, "ann"),
    )
    async with house.database.acquire() as connection:
        await erasures.forget_old(connection)
        old = replace(of, seen_at=of.seen_at - 40 * 86_400)
        assert await erasures.not_erased(connection, [Call((old,))]) == []
    # Of the two turns, the session and the user, one is forgotten.
    assert await house.database.fetchval("SELECT count(*) FROM erasures") == 3


async def test_calls_that_nothing_was_erased_of_are_all_kept(house: House) -> None:
    of = session(tenant_id=house.tenant, lineage_id=house.lineage)
    calls = [Call((of, turn(of))), Call((next_state(turn(of)),))]
    async with house.database.acquire() as connection:
        assert await erasures.not_erased(connection, calls) == calls
        await write(connection, calls, house.database.revision)
    assert (await house.left())["turns"] == 1


async def test_what_was_set_aside_is_looked_through(house: House, tmp_path: Path) -> None:
    known, (_, leaf) = await house.talk("ann")
    other = session(tenant_id=house.tenant, lineage_id=house.lineage, user="bob")
    ours, theirs = encode((known, turn(known, leaf))), encode((other, turn(other)))
    database = house.database
    database.settings = DatabaseSettings(spool=tmp_path / "spool")
    writer = TurnWriter(database)
    # There is nothing yet.
    await writer.drop_erased()
    (tmp_path / "spool").mkdir()
    for payload in (ours, b"not a record", theirs):
        writer._spool.reject(payload)
    await writer.drop_erased()
    assert writer._spool.rejected() == [ours, b"not a record", theirs]
    await Erasure(database).user(house.tenant, "ann", "cli")
    await writer.drop_erased()
    assert writer._spool.rejected() == [b"not a record", theirs]
    (file,) = (tmp_path / "spool").iterdir()
    assert str(known.id).encode() not in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_is_set_aside_meanwhile_is_kept(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=1000)
    for payload in (b"one", b"two"):
        spool.reject(payload)
    seen = spool.rejected()
    spool.reject(b"three")
    spool.keep_rejected([b"two"], len(seen))
    assert spool.rejected() == [b"two", b"three"]


async def test_what_is_erased_is_found_by_indexes(house: House) -> None:
    """Each statement has one to go by, however large the tables."""
    ids, statements = [new_id()], module
    asked: list[tuple[str, tuple[object, ...], str]] = [
        (statements._OF_USER, (house.tenant, "ann"), "sessions_end_user"),
        (statements._OF_SESSION, (house.tenant, ids), "sessions_parent"),
        (statements._TURNS, (ids, house.tenant, 500, None), "turns_session"),
        (statements._FOLLOWED, (ids, ids), "next_states_pkey"),
        (statements._TRAINED, (ids,), "samples_once"),
        (statements._SESSIONS, (ids, house.tenant), "sessions_pkey"),
        (erasures._FIND, ([bytes(32)],), "erasures_pkey"),
    ]
    async with house.database.acquire() as connection:
        await connection.execute("SET enable_seqscan = off")
        for sql, values, index in asked:
            rows = await connection.fetch(f"EXPLAIN {sql}", *values)
            plan = "\n".join(row[0] for row in rows)
            assert index in plan, plan
        await connection.execute("RESET enable_seqscan")


async def test_an_audit_that_comes_after_an_erasure_says_nothing(house: House) -> None:
    of, (_, leaf) = await house.talk("ann")
    job = JudgeJob(
        turn_id=leaf.id,
        round=3,
        tenant_id=house.tenant,
        session_id=of.id,
        lineage_id=house.lineage,
        kind=leaf.kind,
        attempts=1,
        request=leaf.messages,
        reply=leaf.reply,
        next_state=(),
        feedback=(),
        finish_reason=leaf.finish_reason,
        trainable=True,
        untrainable_reason=None,
        version_min=0,
        arrived_at=of.seen_at,
    )
    said = Judgement(score=1, judge="llm:other", reason="Ann was glad.")
    audits = Audits(house.database)
    assert await audits.put(job, said)
    assert not await audits.put(job, said)
    await Erasure(house.database).user(house.tenant, "ann", "cli")
    assert not await audits.put(job, said)
    assert (await house.left())["judgements"] == 0


def said_of(house: House, one: TurnRecord) -> FeedbackRecord:
    return FeedbackRecord(
        id=new_id(), tenant_id=house.tenant, turn_id=one.id, score=1.0, text="I am Ann."
    )


async def test_nothing_is_said_any_more_of_a_turn_that_was_erased(house: House) -> None:
    """Who found it before it was erased, and writes afterwards, leaves no row behind."""
    known, (first, leaf) = await house.talk("ann")
    unknown = turn(known)
    assert await Erasure(house.database).session(house.tenant, known.id, "cli") is not None
    late: tuple[Storable, ...] = (next_state(first), next_state(leaf), said_of(house, leaf))
    for one in late:
        await house.writer.commit(one)
    await house.writer.commit(*late)
    other, talked = await house.talk("bob", turns=1)
    await house.writer.commit(other, turn(other, talked[0]), next_state(leaf))
    left = await house.left()
    assert (left["next_states"], left["feedback"], left["judgements"]) == (1, 1, 1)
    assert await house.mentions(first.id, leaf.id) == []
    # Of a turn that was never there, which may wait in a spool, it is kept.
    await house.writer.commit(next_state(unknown), said_of(house, unknown))
    assert (await house.left())["next_states"] == 2
    assert (await house.left())["feedback"] == 2


@pytest.mark.parametrize("kind", ["feedback", "next_states"])
async def test_what_is_being_said_while_a_turn_is_erased_goes_too(
    house: House, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that began before, and commits after all else is gone, is waited for."""
    monkeypatch.setattr("gateway.store.barrier._TRIES", 10_000)
    known, (_, leaf) = await house.talk("ann")
    record = said_of(house, leaf) if kind == "feedback" else next_state(leaf)
    await house.database.execute("DELETE FROM next_states WHERE turn_id = $1", leaf.id)
    await house.database.execute("UPDATE judgements SET state = 'done'")
    async with house.database.acquire() as connection:
        await connection.execute("BEGIN")
        assert await store(connection, [Call((record,))], house.database.revision)
        erasing = asyncio.create_task(Erasure(house.database).session(house.tenant, known.id, "c"))
        async with asyncio.timeout(120):
            while not await waited_for(house.database, kind):
                await asyncio.sleep(0.02)
        # All that was there is gone by now, and what this one says is not seen yet.
        assert (await house.left())["turns"] == 0
        await connection.execute("COMMIT")
    erased = await erasing
    assert erased is not None
    assert await house.left() == dict.fromkeys((*OF_TURNS, "turns", "sessions"), 0)
    # Two were there, and the late one with its job.
    assert erased.rows[kind] == {"feedback": 3, "next_states": 2}[kind]
    assert erased.rows["judgements"] == 3


async def waited_for(database: Database, table: str) -> bool:
    """Whether somebody waits for all who write into a table."""
    found: bool = await database.fetchval(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::text::regclass"
        " AND mode = 'ShareLock' AND NOT granted)",
        table,
    )
    return found


async def test_an_erasure_does_not_wait_for_ever(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.store.barrier._TRIES", 2)
    monkeypatch.setattr("gateway.store.barrier._WAIT", "10ms")
    known, _ = await house.talk("ann")
    async with house.database.transaction() as connection:
        await connection.execute("LOCK TABLE feedback IN ROW EXCLUSIVE MODE")
        erased = await Erasure(house.database).session(house.tenant, known.id, "cli")
    assert erased is not None
    assert await house.left() == dict.fromkeys((*OF_TURNS, "turns", "sessions"), 0)
