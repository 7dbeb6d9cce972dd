"""Judging again what is stored: read from Postgres, compared, and nothing changed by it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.config import DatabaseSettings
from gateway.records import FeedbackRecord, Judgement, SessionRecord, TurnRecord, new_id
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.judged import JudgedTurns
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn
from tests.scripted_judge import ScriptedJudge, grading


async def judged(
    database: Database, of: SessionRecord, answer: str, score: float | None, **values: Any
) -> TurnRecord:
    """A stored turn with what followed it and the score that it got."""
    writer = await TurnWriter.open(database)
    one = turn(of, **values)
    await writer.commit(of, one)
    await writer.commit(next_state(one, messages=({"role": "user", "content": answer},)))
    await writer.close()
    claims, worker = JudgeClaims(database), new_id()
    for job in await claims.claim(worker, 10, 60):
        judgement = Judgement(judge="old", rule="hunch", score=score)
        assert await claims.finish(worker, job, judgement, None)
    return one


@pytest.fixture
async def stored(database_url: str, tmp_path: Path) -> Any:
    settings = DatabaseSettings(spool=tmp_path / "spool")
    database = await Database.open(settings, database_url, application="test")
    yield database
    await database.close()


async def test_judged_turns_come_with_all_that_a_judge_may_see(stored: Database) -> None:
    one, other = session(), session()
    first = await judged(stored, one, "Thanks!", 1.0, created_at=1000.0)
    second = await judged(stored, one, "Hm.", None, created_at=2000.0)
    third = await judged(stored, other, "No!", -1.0, created_at=3000.0)
    said = FeedbackRecord(
        id=new_id(), tenant_id=one.tenant_id, turn_id=first.id, score=-0.5, text="late"
    )
    writer = await TurnWriter.open(stored)
    await writer.commit(turn(other))  # Served, and not judged.
    await writer.commit(said)
    await writer.close()
    turns = JudgedTurns(stored)
    found = await turns.of_session(one.id, 10)
    assert [(each.turn_id, each.score) for each in found] == [(first.id, 1.0), (second.id, None)]
    assert found[0].feedback == (said,)
    assert found[0].request == first.messages
    assert found[0].reply == first.reply
    assert found[0].next_state == ({"role": "user", "content": "Thanks!"},)
    assert (found[0].judge, found[0].rule) == ("old", "hunch")
    assert [each.turn_id for each in await turns.since(2000.0, 10)] == [second.id, third.id]
    assert [each.turn_id for each in await turns.since(0.0, 1)] == [first.id]


async def test_the_command_prints_the_difference_and_stores_nothing(
    stored: Database, database_url: str
) -> None:
    of = session()
    await judged(stored, of, "Thanks!", 1.0, created_at=time.time())
    await judged(stored, of, "And Vienna?", 1.0, created_at=time.time())
    before = await stored.fetch("SELECT * FROM judgements ORDER BY turn_id, round")

    async def nextstate(*arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "judge", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "DATABASE_URL": database_url,
                 "NEXTSTATE_JUDGE__LLM__BASE_URL": server.url, "NEXTSTATE_JUDGE__LLM__MODEL": "m"},
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode or 0, out.decode()

    async with ScriptedJudge(grading(-1)) as server:
        code, out = await nextstate("--replay", str(of.id), "--model", "other", "--json")
        assert (code, json.loads(out)["from_to"]) == (0, {"1 -> -1": 1})
        assert {request["model"] for request in server.requests} == {"other"}
        code, out = await nextstate("--since", "1h")
    assert code == 0
    assert "2 turns judged again: 1 the same, 1 changed, 0 failed" in out
    assert "mean score +1.000 before, +0.000 now" in out
    assert "llm:m" in out
    assert await stored.fetch("SELECT * FROM judgements ORDER BY turn_id, round") == before
