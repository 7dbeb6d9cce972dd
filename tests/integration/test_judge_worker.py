"""Judges on a real Postgres: every job judged exactly once in effect, whatever dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog
from msgspec.structs import replace

from gateway.config import DatabaseSettings, load
from gateway.errors import StoreUnavailable
from gateway.local.postgres import EmbeddedPostgres
from gateway.records import (
    FeedbackRecord,
    FinishReason,
    Judgement,
    NextState,
    SessionRecord,
    TurnRecord,
    VersionSpan,
    new_id,
)
from gateway.store.database import Database, migrate
from gateway.store.settings import SettingStore
from gateway.store.workers import Workers
from gateway.store.writer import TurnWriter
from judge.config import JudgeSettings
from judge.evaluate import RuleJudge
from judge.rules import RULES, Rule
from judge.verdicts import Evidence, Finding, Judge
from judge.worker import run
from tests.factories import next_state, session, turn
from tests.fixtures_engine import free_port
from tests.scripted_judge import ScriptedJudge, grading

ANSWERS = ("Thanks, that is what I needed.", "Please make it shorter.", "And the next one?")
SCORES = (1.0, -1.0, None)


class Desk:
    """A database with one lineage that trains, turns to judge, and judges at work."""

    def __init__(self, url: str, database: Database, writer: TurnWriter, lineage: UUID) -> None:
        self.url, self.database, self._writer, self.lineage = url, database, writer, lineage
        self.session = session(lineage_id=lineage)

    async def add(self, answer: str, of: SessionRecord | None = None, **values: Any) -> TurnRecord:
        """A stored turn that was followed by `answer`."""
        one = turn(of or self.session, **values)
        said: NextState = next_state(one, messages=({"role": "user", "content": answer},))
        await self._writer.commit(of or self.session, one)
        await self._writer.commit(said)
        return one

    def start(
        self, stop: asyncio.Event, judges: list[Judge] | None = None, **judge: Any
    ) -> asyncio.Task[None]:
        settings = load(
            JudgeSettings,
            database={"url": self.url},
            session_awareness={"session_timeout_s": 60},
            judge={"poll_s": 0.2, "heartbeat_s": 0.1, "retry_after_s": 0.01, **judge},
        )
        return asyncio.create_task(run(settings, stop, judges))

    async def count(self, where: str, table: str = "judgements") -> int:
        found: int = await self.database.fetchval(f"SELECT count(*) FROM {table} WHERE {where}")
        return found


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await check():
            await asyncio.sleep(0.05)


async def open_desk(url: str, spool: Path) -> Desk:
    database = await Database.open(DatabaseSettings(spool=spool), url, application="test")
    writer = await TurnWriter.open(database)
    lineage = new_id()
    await database.execute(
        "INSERT INTO lineages (id, name, base_model, kind) VALUES ($1, 'main', 'tiny', 'lora')",
        lineage,
    )
    return Desk(url, database, writer, lineage)


async def close_desk(desk: Desk) -> None:
    await desk._writer.close()
    await desk.database.close()


@pytest.fixture
async def desk(database_url: str, tmp_path: Path) -> AsyncIterator[Desk]:
    desk = await open_desk(database_url, tmp_path / "spool")
    yield desk
    await close_desk(desk)


class Slow:
    """The rules, after a pause long enough to be killed in."""

    name = "rules"

    def __init__(self, seconds: float) -> None:
        self._rules, self._seconds = RuleJudge(), seconds

    async def judge(self, evidence: Evidence) -> Judgement | None:
        await asyncio.sleep(self._seconds)
        return await self._rules.judge(evidence)


async def test_two_hundred_jobs_survive_a_judge_that_is_killed(desk: Desk):
    wanted = {}
    for number in range(200):
        kind = number % len(ANSWERS)
        wanted[(await desk.add(ANSWERS[kind])).id] = SCORES[kind]
    stop = asyncio.Event()
    doomed = desk.start(asyncio.Event(), [Slow(3600)], lease_s=1, concurrency=20)
    await eventually(lambda: _is(desk.count("state = 'leased'"), 20))
    # No farewell: what it holds stays leased until the leases run out.
    doomed.cancel()
    await asyncio.gather(doomed, return_exceptions=True)
    first = desk.start(stop, [Slow(0.01)], concurrency=20)
    second = desk.start(stop, [Slow(0.01)], concurrency=20)
    await eventually(lambda: _is(desk.count("state <> 'done'"), 0))
    stop.set()
    await asyncio.gather(first, second)
    rows = await desk.database.fetch("SELECT turn_id, score, round, attempts FROM judgements")
    assert {row["turn_id"]: row["score"] for row in rows} == wanted
    assert {row["round"] for row in rows} == {1}
    assert sorted(row["attempts"] for row in rows) == [1] * 180 + [2] * 20
    samples = await desk.database.fetch("SELECT turn_id, score, method, state FROM samples")
    assert {row["turn_id"]: row["score"] for row in samples} == {
        turn_id: score for turn_id, score in wanted.items() if score is not None
    }
    assert len(samples) == sum(score is not None for score in wanted.values())
    assert {(row["method"], row["state"]) for row in samples} == {("binary", "ready")}
    unscored = await desk.count("outcome = 'unscored' AND reason = 'no_rule_settled'", "verdicts")
    assert unscored == sum(score is None for score in wanted.values())


async def _is(count: Awaitable[int], expected: int) -> bool:
    return await count == expected


async def test_a_crash_in_one_rule_fails_only_that_job(desk: Desk):
    def explode(evidence: Evidence) -> Finding | None:
        if "boom" in evidence.answers:
            raise RuntimeError("a bug in this rule")
        return None

    bad = await desk.add("boom")
    good = [await desk.add("Thanks!") for _ in range(5)]
    stop = asyncio.Event()
    judge = RuleJudge(rules=(Rule("buggy", 0.5, explode), *RULES))
    working = desk.start(stop, [judge], max_attempts=2)
    await eventually(lambda: _is(desk.count("state IN ('queued', 'leased')"), 0))
    stop.set()
    await working
    row = await desk.database.fetchrow("SELECT * FROM judgements WHERE turn_id = $1", bad.id)
    assert row is not None
    assert (row["state"], row["attempts"]) == ("dead", 2)
    assert row["reason"] == "RuntimeError: a bug in this rule"
    assert await desk.count("state = 'done' AND score = 1") == len(good)
    verdict = await desk.database.fetchrow("SELECT * FROM verdicts WHERE turn_id = $1", bad.id)
    assert verdict is not None
    assert (verdict["outcome"], verdict["reason"]) == ("unscored", "judging_failed")


async def test_a_job_is_judged_when_it_is_announced_not_when_polled(desk: Desk):
    stop = asyncio.Event()
    working = desk.start(stop, poll_s=3600)
    await eventually(lambda: _is(desk.count("kind = 'judge'", "workers"), 1))
    await desk.add("Thanks!")
    await eventually(lambda: _is(desk.count("score = 1"), 1))
    stop.set()
    await working


async def test_a_reply_that_was_cut_is_no_success(desk: Desk):
    cut = await desk.add("Thanks!", finish_reason=FinishReason.LENGTH)
    stop = asyncio.Event()
    with structlog.testing.capture_logs() as logs:
        working = desk.start(stop)
        await eventually(lambda: _is(desk.count("state = 'done'"), 1))
        stop.set()
        await working
    row = await desk.database.fetchrow("SELECT * FROM judgements WHERE turn_id = $1", cut.id)
    assert row is not None
    assert (row["score"], row["rule"]) == (None, "truncated")
    assert await desk.count("true", "samples") == 0
    [event] = [entry for entry in logs if entry["event"] == "scored"]
    assert (event["turn_id"], event["policy_version"]) == (str(cut.id), 3)
    assert "Thanks" not in str(logs)


async def test_what_it_has_no_time_for_when_it_stops_is_free_at_once(desk: Desk):
    one = await desk.add("Thanks!")
    stop = asyncio.Event()
    working = desk.start(stop, [Slow(3600)], shutdown_grace_s=0.05, lease_s=3600)
    await eventually(lambda: _is(desk.count("state = 'leased'"), 1))
    stop.set()
    await working
    row = await desk.database.fetchrow("SELECT * FROM judgements WHERE turn_id = $1", one.id)
    assert row is not None
    assert (row["state"], row["attempts"], row["lease_owner"]) == ("queued", 0, None)


async def test_what_is_too_far_behind_is_not_judged(desk: Desk):
    await desk.database.execute("UPDATE lineages SET live_version = 8")
    old = [await desk.add("Thanks!") for _ in range(40)]
    fresh = await desk.add("Thanks!", spans=(VersionSpan(version=4, start=0, end=4),))
    said = await desk.add("And Vienna?")
    word = FeedbackRecord(id=new_id(), tenant_id=said.tenant_id, turn_id=said.id, score=1.0)
    await desk._writer.commit(word)
    stop = asyncio.Event()
    late = "UPDATE next_states SET arrived_at = arrived_at + interval '2 days' WHERE turn_id = $1"
    await desk.database.execute(late, old[0].id)
    # Version 3 is five behind, and η is 4.
    with structlog.testing.capture_logs() as logs:
        working = desk.start(stop, concurrency=4)
        await eventually(lambda: _is(desk.count("state IN ('queued', 'leased')"), 0))
        stop.set()
        await working
    rows = await desk.database.fetch("SELECT turn_id, state, reason, score FROM judgements")
    found = {row["turn_id"]: tuple(row)[1:] for row in rows}
    assert [found[turn.id] for turn in old] == [("skipped", "stale", None)] * 40
    assert found[fresh.id][::2] == ("done", 1.0)
    # Somebody's own word is heard, however late.
    assert found[said.id][::2] == ("done", 1.0)
    assert await desk.count("outcome = 'dropped' AND reason = 'stale'", "verdicts") == 40
    told = [entry for entry in logs if entry["event"] == "dropped"]
    assert sum(entry.get("stale_within_minute", 0) for entry in told) == 39
    assert sum(entry.get("stale_after_day", 0) for entry in told) == 1


async def test_versions_that_were_rolled_back_make_nothing_stale(desk: Desk):
    # Version 8 comes from 2, and 2 from 1: 1 is two steps away, and 7 none of them.
    for version, parent in ((1, None), (2, 1), (7, 2), (8, 2)):
        await desk.database.execute(
            "INSERT INTO policies (lineage_id, version, parent_version, kind, uri, state) "
            "VALUES ($1, $2, $3, 'lora', 'file:///x', 'retired')",
            desk.lineage, version, parent,
        )  # fmt: skip
    await desk.database.execute("UPDATE lineages SET live_version = 8")
    near, far = [
        await desk.add("Thanks!", spans=(VersionSpan(version=version, start=0, end=4),))
        for version in (1, 3)
    ]
    stop = asyncio.Event()
    working = desk.start(stop)
    await eventually(lambda: _is(desk.count("state IN ('queued', 'leased')"), 0))
    stop.set()
    await working
    rows = await desk.database.fetch("SELECT turn_id, state, reason FROM judgements")
    found = {row["turn_id"]: row["state"] for row in rows}
    assert (found[near.id], found[far.id]) == ("done", "skipped")


async def test_an_alarm_is_in_the_heartbeat_and_in_the_metrics(desk: Desk):
    for _ in range(4):
        await desk.add("And Vienna?")
    stop, port = asyncio.Event(), free_port()
    async with ScriptedJudge(lambda _: "I would rather not say.") as server:
        llm = {"base_url": server.url, "model": "m", "votes": 2, "prompt_usd": 10.0}
        alarms = {"min_count": 8}
        working = desk.start(stop, llm=llm, alarms=alarms, metrics_port=port)
        workers = Workers(desk.database)

        async def raised() -> bool:
            details = [one.detail for one in await workers.alive("judge", 10)]
            return [one["alarms"] for one in details] == [["parse_failures"]]

        await eventually(raised)
        text = await asyncio.to_thread(_scrape, port)
        stop.set()
        await working
    assert 'nextstate_judge_votes_total{kind="grade",outcome="unparsed"} 8.0' in text
    assert 'nextstate_judge_alarm{figure="parse_failures"} 1.0' in text
    # Eight answers to a hundred tokens each, at ten dollars a million.
    assert "nextstate_judge_usd_total 0.008" in text
    usage = await desk.database.fetchval("SELECT usage FROM judgements LIMIT 1")
    assert (usage["calls"], usage["prompt_tokens"], usage["usd"]) == (2, 200, 0.002)


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        text: str = reply.read().decode()
    return text


async def test_it_reports_itself_and_leaves_the_list_when_it_stops(desk: Desk):
    await desk.add("Thanks!")
    stop = asyncio.Event()
    working = desk.start(stop)
    workers = Workers(desk.database)

    async def reported() -> bool:
        details = [one.detail for one in await workers.alive("judge", 10)]
        return [(one["scored"], one["health"]["settled_by_rules"]) for one in details] == [(1, 1)]

    await eventually(reported)
    stop.set()
    await working
    assert await workers.alive("judge", 10) == []


async def test_an_llm_judges_what_the_rules_leave_open_once_it_is_there(desk: Desk):
    left_open, settled = await desk.add("And Vienna?"), await desk.add("Thanks!")
    server = ScriptedJudge(grading(-1))
    server.port = free_port()
    llm = {"base_url": server.url, "model": "m", "retries": 0, "votes": 2}
    stop = asyncio.Event()
    # Nobody listens yet: the job waits, and no attempt is counted.
    working = desk.start(stop, llm=llm, max_attempts=1)
    waiting = "state = 'queued' AND reason LIKE 'JudgeUnavailable%' AND attempts = 0"
    await eventually(lambda: _is(desk.count(waiting), 1))
    assert await desk.count("score = 1 AND judge = 'rules'") == 1
    async with server:
        await eventually(lambda: _is(desk.count("state = 'done'"), 2))
    stop.set()
    await working
    row = await desk.database.fetchrow("SELECT * FROM judgements WHERE turn_id = $1", left_open.id)
    assert row is not None
    assert (row["judge"], row["score"], row["rule"]) == ("llm:m", -1, None)
    assert [(vote["kind"], vote["score"]) for vote in row["votes"]] == [("grade", -1)] * 2
    assert await desk.count(f"turn_id = '{settled.id}' AND votes = '[]'") == 1
    samples = await desk.database.fetch("SELECT turn_id, score FROM samples")
    assert {row["turn_id"]: row["score"] for row in samples} == {left_open.id: -1, settled.id: 1}


async def test_how_long_a_session_may_be_idle_is_changed_while_it_works(desk: Desk):
    last = turn(desk.session, created_at=time.time() - 30)
    await desk._writer.commit(replace(desk.session, seen_at=time.time() - 30), last)
    stop = asyncio.Event()
    working = desk.start(stop, idle_check_s=0.05)
    await desk.add("Thanks!", session(lineage_id=desk.lineage))
    await eventually(lambda: _is(desk.count("score = 1"), 1))
    assert await desk.count("status = 'closed'", "sessions") == 0
    await SettingStore(desk.database).put("session_awareness", {"session_timeout_s": 10})
    await eventually(
        lambda: _is(desk.count(f"id = '{last.session_id}' AND status = 'closed'", "sessions"), 1)
    )
    stop.set()
    await working


async def test_idle_sessions_are_closed_and_their_last_turns_get_a_verdict(desk: Desk):
    old = session(lineage_id=desk.lineage, seen_at=1000.0)
    await desk._writer.commit(old, turn(old, created_at=1000.0))
    stop = asyncio.Event()
    working = desk.start(stop, idle_check_s=0.05)
    await eventually(
        lambda: _is(desk.count("status = 'closed' AND end_reason = 'idle'", "sessions"), 1)
    )
    stop.set()
    await working
    assert await desk.count("reason = 'no_next_state'", "verdicts") == 1


@pytest.fixture
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server that may be stopped and started without disturbing other tests."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("pg", numbered=True))
    server.start()
    yield server
    server.stop()


async def test_it_outlives_a_restart_of_postgres(own_postgres: EmbeddedPostgres, tmp_path: Path):
    await migrate(own_postgres.url)
    desk = await open_desk(own_postgres.url, tmp_path / "spool")
    stop = asyncio.Event()
    working = desk.start(stop)
    await desk.add("Thanks!")
    await eventually(lambda: _is(desk.count("score = 1"), 1))
    await asyncio.to_thread(own_postgres.stop)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(own_postgres.start)

    async def add_again() -> bool:
        await desk.add("That's wrong.")
        return True

    await eventually(add_again)
    await eventually(lambda: _answered(desk))
    assert not working.done()
    stop.set()
    await working
    await close_desk(desk)


async def _answered(desk: Desk) -> bool:
    try:
        return await desk.count("score = -1") == 1
    except StoreUnavailable:
        return False


async def test_the_process_stops_when_asked_and_says_what_is_wrong(
    desk: Desk, empty_database_url: str, tmp_path: Path
):
    async def start(url: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "judge",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "DATABASE_URL": url, "NEXTSTATE_LOG__FORMAT": "json"},
        )  # fmt: skip

    await desk.add("Thanks!")
    process = await start(desk.url)
    await eventually(lambda: _is(desk.count("score = 1"), 1))
    process.send_signal(signal.SIGTERM)
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert (process.returncode, err) == (0, b"")
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events] == ["judge_started", "scored", "judge_stopped"]
    assert {event["component"] for event in events} == {"judge"}
    process = await start(empty_database_url)
    _, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 1
    assert err.decode() == "judge: the database has no tables yet: run `nextstate migrate`\n"
