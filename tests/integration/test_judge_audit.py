"""An independent judge that looks again at a share of the turns, and never changes a score."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from pydantic import ValidationError

from gateway.records import new_id
from gateway.store.claims import JudgeClaims
from gateway.store.samples import SampleStore
from judge.alarms import alarms
from judge.audit import drawn
from judge.config import AlarmConfig, AuditConfig
from judge.health import Health
from tests.integration.test_judge_worker import Desk, close_desk, eventually, open_desk
from tests.scripted_judge import ScriptedJudge, grading


@pytest.fixture
async def desk(database_url: str, tmp_path: Path) -> AsyncIterator[Desk]:
    desk = await open_desk(database_url, tmp_path / "spool")
    yield desk
    await close_desk(desk)


def audit(server: ScriptedJudge, share: float = 1.0) -> dict[str, object]:
    return {"llm": {"base_url": server.url, "model": "other", "votes": 2}, "share": share}


async def test_what_it_finds_is_a_round_beside_that_changes_nothing(desk: Desk) -> None:
    liked, disliked = await desk.add("Thanks!"), await desk.add("Please make it shorter.")
    left_open = await desk.add("And Vienna?")
    stop = asyncio.Event()
    async with ScriptedJudge(grading(1)) as server:
        working = desk.start(stop, audit=audit(server))

        async def told() -> bool:
            health = await desk.database.fetchval("SELECT detail -> 'health' FROM workers")
            return bool(
                health and health["audit_checked"] == 2 and await desk.count("state = 'done'") == 5
            )

        await eventually(told)
        health = await desk.database.fetchval("SELECT detail -> 'health' FROM workers")
        # Judged again: the next round is the second, whatever lies below 0.
        assert await JudgeClaims(desk.database).rejudge(liked.id)
        await eventually(lambda: _rounds(desk, liked.id, [-2, -1, 1, 2]))
        stop.set()
        await working
    assert health["audit_agreement"] == 0.5
    rows = await desk.database.fetch(
        "SELECT turn_id, round, judge, score FROM judgements ORDER BY turn_id, round"
    )
    of = {turn.id: [] for turn in (liked, disliked, left_open)}
    for row in rows:
        of[row["turn_id"]].append((row["round"], row["judge"], row["score"]))
    assert of[disliked.id] == [(-1, "audit", 1), (1, "rules", -1)]
    assert of[liked.id] == [(-2, "audit", 1), (-1, "audit", 1), (1, "rules", 1), (2, "rules", 1)]
    assert of[left_open.id] == [(1, "none", None)]  # nothing to compare
    heads = await SampleStore(desk.database).window(desk.lineage, 9)
    assert {(head.turn_id, head.score, head.rule) for head in heads} == {
        (liked.id, 1, "thanks"), (disliked.id, -1, "redo")
    }  # fmt: skip


async def test_one_that_is_away_costs_nothing(desk: Desk) -> None:
    await desk.add("Thanks!")
    stop = asyncio.Event()
    gone = ScriptedJudge(grading(1))
    gone.port = 1
    working = desk.start(stop, audit=audit(gone))
    await eventually(lambda: _is_done(desk, 1))
    stop.set()
    await working
    assert await desk.count("state = 'done'") == 1
    assert await desk.count("true", "samples") == 1


async def _is_done(desk: Desk, count: int) -> bool:
    return await desk.count("state = 'done'") == count


async def _rounds(desk: Desk, turn: UUID, rounds: list[int]) -> bool:
    rows = await desk.database.fetch(
        "SELECT round FROM judgements WHERE turn_id = $1 AND state = 'done' ORDER BY 1", turn
    )
    return [row["round"] for row in rows] == rounds


def test_the_share_is_of_turns_and_the_same_for_every_worker() -> None:
    ids = [new_id() for _ in range(20_000)]
    assert sum(drawn(one, 0.05) for one in ids) == pytest.approx(1000, abs=150)  # 5 sigma
    assert all(drawn(one, 1.0) for one in ids)
    assert not any(drawn(one, 0.0) for one in ids)
    assert [drawn(one, 0.05) for one in ids] == [drawn(one, 0.05) for one in ids]
    with pytest.raises(ValidationError):
        AuditConfig(llm={"base_url": "http://x/v1", "model": "m"}, share=1.5)


def test_disagreement_raises_an_alarm() -> None:
    health = Health()
    for _ in range(15):
        health.audited(1.0, -1.0)
        health.audited(-1.0, 1.0)
    found = health.report()
    assert (found["audit_checked"], found["audit_agreement"], found["audit_kappa"]) == (30, 0, -1)
    assert alarms(found, AlarmConfig()) == ["audit_kappa"]
    assert alarms(found, AlarmConfig(audit_kappa=None)) == []
