"""What tenants keep for a time only goes when its time is over, and nothing else does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from gateway.config import DatabaseSettings, RetentionSettings
from gateway.records import FeedbackRecord, Judgement, TurnRecord, new_id
from gateway.store import batch
from gateway.store.calls import Call
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.expiry import BOUND, CLEARS, DUE, WAITING, Part, take_marks_back
from gateway.store.periods import first_id
from gateway.store.retention import Retention
from gateway.store.turn_rows import DELETES, OF_TURNS
from gateway.store.turns import TurnStore
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn

DAY = 86_400.0
NOW = time.time()
FAST = RetentionSettings(turns_per_s=1_000_000)


def id_at(at: float) -> UUID:
    """An id as it was minted then."""
    return UUID(int=first_id(at).int | new_id().int & ((1 << 80) - 1))


@dataclass(kw_only=True)
class Store:
    database: Database
    writer: TurnWriter
    lineage: UUID
    tenants: dict[str, UUID]

    async def tenant(self, name: str, **days: int) -> UUID:
        """A tenant that keeps parts for so many days."""
        tenant_id = self.tenants[name] = new_id()
        settings = {"retention": {f"{part}_days": count for part, count in days.items()}}
        await self.database.execute(
            "INSERT INTO tenants (id, name, settings) VALUES ($1, $2, $3)",
            tenant_id, name, settings,
        )  # fmt: skip
        return tenant_id

    async def talk(
        self, tenant: str, *days_ago: float, judged: bool = True, **values: Any
    ) -> list[TurnRecord]:
        """A session whose turns were served so many days ago, each followed and judged."""
        of = session(
            tenant_id=self.tenants[tenant],
            lineage_id=self.lineage,
            seen_at=NOW - min(days_ago) * DAY,
        )
        turns: list[TurnRecord] = []
        for ago in days_ago:
            at = NOW - ago * DAY
            one = turn(
                of, turns[-1] if turns else None, id=id_at(at), created_at=at,
                echoes=(f"echo {at}",), idempotency_key=f"key {at}", **values,
            )  # fmt: skip
            said = FeedbackRecord(
                id=new_id(), tenant_id=one.tenant_id, turn_id=one.id, score=1.0, text="Good."
            )
            await self.writer.commit(of, one)
            await self.writer.commit(next_state(one, arrived_at=at), said)
            turns.append(one)
        if judged:
            await self.judge()
        return turns

    async def judge(self) -> None:
        claims, worker = JudgeClaims(self.database), new_id()
        judgement = Judgement(
            judge="test", score=1.0, reason="they thanked", votes=({"said": "thanks"},), hint="do"
        )
        while jobs := await claims.claim(worker, 100, 60):
            for job in jobs:
                assert await claims.finish(worker, job, judgement, "binary_rl")

    async def train(self) -> None:
        """Everything that is ready has been trained on."""
        await self.database.execute("UPDATE samples SET state = 'trained' WHERE state = 'ready'")
        await self.database.execute(
            "INSERT INTO verdicts (turn_id, outcome, reason) "
            "SELECT turn_id, 'trained', 'trained' FROM samples ON CONFLICT DO NOTHING"
        )

    async def clear(self, settings: RetentionSettings = FAST) -> dict[str, int]:
        done = await Retention(self.database, settings).run(NOW)
        assert done is not None
        return done.turns

    async def row(self, table: str, of: TurnRecord) -> dict[str, Any]:
        key = "id" if table == "turns" else "turn_id"
        (row,) = await self.database.fetch(f"SELECT * FROM {table} WHERE {key} = $1", of.id)
        return dict(row)

    async def count(self, table: str) -> int:
        found: int = await self.database.fetchval(f"SELECT count(*) FROM {table}")
        return found


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    lineage = new_id()
    await database.execute(
        "INSERT INTO lineages (id, name, base_model, kind) VALUES ($1, 'l', 'm', 'lora')", lineage
    )
    writer = await TurnWriter.open(database)
    yield Store(database=database, writer=writer, lineage=lineage, tenants={})
    await writer.close()


async def test_text_tokens_and_scores_go_each_at_their_time(store: Store) -> None:
    await store.tenant("one", text=1, tokens=3, scores=5)
    fields = {"metadata": {"a": "b"}}
    newest, text, tokens, scores = [
        (await store.talk("one", ago, response_fields=fields))[0] for ago in (0.5, 2, 4, 6)
    ]
    await store.train()
    assert await store.clear() == {"text": 3, "tokens": 2, "scores": 1}

    kept = await store.row("turns", newest)
    assert kept["messages"] == list(newest.messages)
    assert kept["prompt_ids"] != b""
    assert kept["response_fields"] == fields
    assert (await store.row("feedback", newest))["text"] == "Good."
    assert (await store.row("judgements", newest))["hint"] == "do"

    one = await store.row("turns", text)
    assert (one["messages"], one["tools"], one["reply"]) == ([], [], {})
    assert (one["idempotency_key"], one["response_fields"]) == (None, None)
    assert text.chain_hash not in (one["chain_hash"], one["request_hash"])
    assert (await store.row("next_states", text))["messages"] == []
    assert (await store.row("feedback", text))["text"] == ""
    said = await store.row("judgements", text)
    assert (said["reason"], said["votes"], said["hint"], said["score"]) == (None, [], None, 1.0)
    assert await store.database.fetch("SELECT FROM echoes WHERE turn_id = $1", text.id) == []
    # Ids and their log-probabilities have more time, and are aligned as before.
    assert len(one["sampled_ids"]) == len(one["logprobs"]) == 4 * one["completion_len"] > 0

    two = await store.row("turns", tokens)
    assert (two["prompt_ids"], two["sampled_ids"], two["logprobs"]) == (b"", b"", b"")
    assert (two["prompt_len"], two["completion_len"]) == (3, 4)
    assert (await store.row("judgements", tokens))["score"] == 1.0

    assert await store.database.fetch("SELECT FROM judgements WHERE turn_id = $1", scores.id) == []
    assert await store.database.fetch("SELECT FROM feedback WHERE turn_id = $1", scores.id) == []
    # It was trained on, and must not be again.
    assert (await store.row("samples", scores))["state"] == "trained"
    assert (await store.row("verdicts", scores))["outcome"] == "trained"
    # All can still be counted.
    assert await store.count("turns") == 4
    # Nothing is left to do, and of the pass there is an entry.
    assert await store.clear() == {}
    (entry,) = await store.database.fetch("SELECT actor, action, subject FROM audit_entries")
    assert (entry["actor"], entry["action"]) == ("job", "retention")
    assert entry["subject"]["turns"] == {"text": 3, "tokens": 2, "scores": 1}


async def test_likely_tokens_go_with_the_ids(store: Store) -> None:
    await store.tenant("one", tokens=1)
    fields = {"include": ["x"], "top": "packed"}
    (one,) = await store.talk("one", 2, response_fields=fields)
    (other,) = await store.talk("one", 3)
    await store.train()
    assert await store.clear() == {"tokens": 2}
    assert (await store.row("turns", one))["response_fields"] == {"include": ["x"]}
    assert (await store.row("turns", other))["response_fields"] is None


async def test_whole_turns_go_with_all_that_was_said_of_them(store: Store) -> None:
    await store.tenant("one", turns=3)
    await store.tenant("other")
    (gone,) = await store.talk("one", 5)
    (kept,) = await store.talk("one", 1)
    await store.talk("other", 5)
    await store.train()
    assert await store.clear() == {"turns": 1}
    assert await store.count("turns") == 2
    for table in OF_TURNS:
        if table != "teachings":
            rows = await store.database.fetch(f"SELECT FROM {table} WHERE turn_id = $1", kept.id)
            assert len(rows) == 1, table
        assert await store.database.fetch(f"SELECT FROM {table} WHERE turn_id = $1", gone.id) == []
    sessions = {row["id"] for row in await store.database.fetch("SELECT id FROM sessions")}
    assert kept.session_id in sessions
    assert gone.session_id not in sessions
    assert len(sessions) == 2


@pytest.mark.parametrize("judged", [True, False])
async def test_what_waits_to_be_trained_on_is_waited_for_and_then_dropped(
    store: Store, judged: bool
) -> None:
    """The first turn's time is over; the second, which begins with its ids, still waits."""
    await store.tenant("one", tokens=3)
    first, second = await store.talk("one", 3.5, 2.5, judged=judged)
    (other,) = await store.talk("one", 3.2, judged=judged)
    if judged:
        await store.database.execute(
            "UPDATE samples SET state = 'trained' WHERE turn_id <> $1", second.id
        )
    patient = FAST.model_copy(update={"grace_s": DAY})
    done = await Retention(store.database, patient).run(NOW)
    assert done is not None
    # What is younger waits behind it, no longer than the grace.
    assert (done.turns, done.waiting, done.dropped) == ({}, ["tokens"], 0)
    assert (await store.row("turns", first))["prompt_ids"] != b""
    # The trail of what waits is whole.
    trail = await TurnStore(store.database, 1).trail(second.tenant_id, second.id)
    assert trail is not None
    assert list(trail.prompt_ids) == [1, 2, 3, 10, 11, 12, 13, 1, 2, 3]

    done = await Retention(store.database, FAST.model_copy(update={"grace_s": 0.25 * DAY})).run(NOW)
    assert done is not None
    if judged:
        assert (done.turns, done.waiting, done.dropped) == ({"tokens": 2}, [], 1)
    else:
        # The other one's time is over for less than the grace, and nobody has judged it.
        assert (done.turns, done.waiting, done.dropped) == ({"tokens": 1}, ["tokens"], 2)
        assert (await store.row("judgements", second))["state"] == "skipped"
        assert (await store.row("judgements", other))["state"] == "queued"
    verdict = await store.row("verdicts", second)
    assert (verdict["outcome"], verdict["reason"]) == ("dropped", "retention")
    assert (await store.row("turns", first))["prompt_ids"] == b""
    assert (await store.row("turns", second))["prompt_ids"] != b""


async def test_what_is_trained_meanwhile_is_cleared_at_the_next_look(store: Store) -> None:
    await store.tenant("one", text=3)
    await store.talk("one", 3.5)
    assert await store.clear(FAST.model_copy(update={"grace_s": DAY})) == {}
    await store.train()
    assert await store.clear() == {"text": 1}
    assert await store.database.fetchval("SELECT count(*) FROM verdicts") == 1
    assert await store.database.fetchval("SELECT outcome FROM verdicts") == "trained"


async def test_a_pass_goes_on_where_it_was_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.tenant("one", text=1)
    await store.tenant("other", text=1)
    for ago in (9, 8, 7, 6, 5):
        await store.talk("one", ago)
        await store.talk("other", ago)
    await store.train()
    small = FAST.model_copy(update={"batch": 3})
    batches = 0
    real = Retention._batch

    async def killed(self: Retention, *values: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 3:
            raise asyncpg.PostgresConnectionError("gone")
        return await real(self, *values)

    monkeypatch.setattr(Retention, "_batch", killed)
    with pytest.raises(Exception, match="gone"):
        await Retention(store.database, small).run(NOW)
    cleared = "SELECT count(*) FROM turns WHERE text_cleared"
    # Both share their batches: six turns in two of three.
    assert await store.database.fetchval(cleared) == 6
    assert await store.clear(small) == {"text": 4}
    assert await store.database.fetchval(cleared) == 10
    assert await store.clear(small) == {}


async def test_a_tenant_that_begins_later_is_brought_up_to_the_others(store: Store) -> None:
    await store.tenant("one", text=1)
    await store.talk("one", 3)
    await store.train()
    assert await store.clear() == {"text": 1}
    await store.tenant("other", text=1)
    await store.talk("other", 4)
    await store.train()
    assert await store.clear() == {"text": 1}
    marks = await store.database.fetch("SELECT cleared_to FROM retention_marks")
    assert [row[0] for row in marks] == [first_id(NOW - DAY)] * 2


async def test_a_turn_that_waited_in_a_spool_is_found_behind_the_mark(
    store: Store, tmp_path: Path
) -> None:
    tenant = await store.tenant("one", text=1)
    assert await store.clear() == {}
    settings = DatabaseSettings(spool=tmp_path / "late", url=None)
    of = session(tenant_id=tenant, lineage_id=store.lineage)
    late = turn(of, id=id_at(NOW - 5 * DAY), created_at=NOW - 5 * DAY)
    database = store.database
    before, database.settings = database.settings, settings
    try:
        writer = TurnWriter(database)
        writer._away = True
        writer._tasks = [asyncio.create_task(writer._write_on())]
        await writer.commit(of, late)
        assert writer.spooled == 1
        await writer._drain()
        await writer.close()
    finally:
        database.settings = before
    assert await store.clear() == {"text": 1}
    assert (await store.row("turns", late))["reply"] == {}


async def test_one_process_at_a_time(store: Store) -> None:
    await store.tenant("one", text=1)
    retention = Retention(store.database, FAST)
    async with retention._leading() as connection:
        assert connection is not None
        assert await Retention(store.database, FAST).run(NOW) is None
    assert await Retention(store.database, FAST).run(NOW) is not None


async def test_a_late_job_has_nothing_to_judge_but_what_somebody_says(store: Store) -> None:
    await store.tenant("one", text=1, tokens=1)
    one, other = (await store.talk("one", 3))[0], (await store.talk("one", 3))[0]
    await store.train()
    await store.clear()
    await store.database.execute("DELETE FROM feedback WHERE turn_id = $1", one.id)
    await store.database.execute("DELETE FROM samples")
    await store.database.execute("DELETE FROM verdicts")
    await store.database.execute(
        "INSERT INTO judgements (turn_id, round, tenant_id) SELECT id, 2, tenant_id FROM turns"
    )
    claims, worker = JudgeClaims(store.database), new_id()
    (job,) = await claims.claim(worker, 10, 60)
    assert job.turn_id == other.id
    assert [said.score for said in job.feedback] == [1.0]
    assert await claims.finish(worker, job, Judgement(judge="test", score=1.0), "binary_rl")
    rows = await store.database.fetch("SELECT turn_id, outcome, reason FROM verdicts")
    assert {tuple(row) for row in rows} == {
        (one.id, "dropped", "retention"),
        (other.id, "dropped", "retention"),
    }
    assert await store.count("samples") == 0


async def test_the_plan_says_what_is_due(store: Store) -> None:
    await store.tenant("one", text=1, turns=30)
    await store.talk("one", 2)
    await store.talk("one", 3)
    planned = await Retention(store.database, FAST).plan(NOW)
    assert [(one["tenant"], one["part"], one["due"], one["more"]) for one in planned] == [
        ("one", "text", 2, False),
        ("one", "turns", 0, False),
    ]
    assert planned[0]["until"] == pytest.approx(NOW - DAY)


async def plan_of(connection: asyncpg.Connection, sql: str, *values: object) -> str:
    rows = await connection.fetch(f"EXPLAIN {sql}", *values)
    return "\n".join(row[0] for row in rows)


async def test_every_statement_of_the_job_reads_by_an_index(store: Store) -> None:
    """With many turns in tables that nobody has analysed, and after."""
    await store.tenant("one", text=1)
    (one,) = await store.talk("one", 2)
    columns = [
        row[0]
        for row in await store.database.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'turns'::regclass AND attnum > 0"
            " AND attname NOT IN ('id', 'session_id') AND NOT attisdropped"
        )
    ]
    names = ", ".join(columns)
    await store.database.execute(
        f"INSERT INTO turns (id, session_id, {names})"
        f" SELECT gen_random_uuid(), gen_random_uuid(), {names}"
        " FROM turns, generate_series(1, 20000) WHERE id = $1",
        one.id,
    )
    low, high = UUID(int=0), UUID(int=2**120)
    statements: list[tuple[str, tuple[object, ...]]] = [
        (BOUND, (low, high, 500)),
        (WAITING, ([one.id],)),
        *((sql, (low, high, [one.tenant_id])) for sql in DUE.values()),
        *((sql, ([one.id],)) for sql in DELETES.values()),
        *((sql, ([one.id],)) for part in CLEARS for sql in CLEARS[part]),
    ]
    assert {*DUE} == {*Part}
    async with store.database.acquire() as connection:
        for analysed in (False, True):
            if analysed:
                await connection.execute("ANALYZE")
            # Of tables with a page only, all of it would be as quick.
            await connection.execute("SET enable_seqscan = off")
            for sql, values in statements:
                found = await plan_of(connection, sql, *values)
                assert "Seq Scan" not in found, found
        await connection.execute("RESET enable_seqscan")
        for sql in (BOUND, DUE[Part.TEXT]):
            values = (low, high, 500) if sql is BOUND else (low, high, [one.tenant_id])
            found = await plan_of(connection, sql, *values)
            assert "turns_pkey" in found, found
            assert "Index Cond: ((id > " in found
            assert "Seq Scan" not in found


async def test_a_turn_that_comes_in_late_while_a_pass_is_under_way_is_left_to_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await store.tenant("one", text=1)
    for ago in (8, 7, 6, 5):
        await store.talk("one", ago)
    await store.train()
    of = session(tenant_id=tenant, lineage_id=store.lineage)
    late = turn(of, id=id_at(NOW - 9 * DAY), created_at=NOW - 9 * DAY)
    real, batches = Retention._batch, 0

    async def beside(self: Retention, *values: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 3:
            async with store.database.transaction() as connection:
                await batch.store(connection, [Call((of, late))], store.database.revision)
                await take_marks_back(connection, [late])
        return await real(self, *values)

    monkeypatch.setattr(Retention, "_batch", beside)
    assert await store.clear(FAST.model_copy(update={"batch": 1})) == {"text": 4}
    assert batches > 3
    assert not (await store.row("turns", late))["text_cleared"]
    assert await store.clear() == {"text": 1}
    assert (await store.row("turns", late))["text_cleared"]
