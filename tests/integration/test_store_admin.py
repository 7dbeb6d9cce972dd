"""What operators read adds up, page by page, and shows one tenant nothing of another."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from gateway.config import DatabaseSettings
from gateway.errors import InvalidRequest
from gateway.records import (
    FeedbackRecord,
    Judgement,
    PolicyKind,
    PolicyRef,
    Role,
    SessionRecord,
    StepRecord,
    SwapRecord,
    TurnKind,
    new_id,
)
from gateway.store import ledger
from gateway.store.admin import AdminReads
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.turns import TurnStore
from gateway.store.workers import Heartbeat
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn

WORKER = new_id()


@dataclass
class World:
    database: Database
    writer: TurnWriter
    admin: AdminReads
    tenant: UUID
    key: UUID
    lineage: UUID

    def session(self, **values: object) -> SessionRecord:
        return session(tenant_id=self.tenant, key_id=self.key, lineage_id=self.lineage, **values)

    async def judge(self, *scores: float | None) -> None:
        claims = JudgeClaims(self.database)
        jobs = await claims.claim(WORKER, 100, 60)
        for job, score in zip(jobs, scores, strict=True):
            judgement = Judgement(judge="rules", score=score, reason="private", hint="private")
            await claims.finish(WORKER, job, judgement, "binary")


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    settings = DatabaseSettings(spool=tmp_path)
    database = await Database.open(settings, database_url, application="test")
    writer = await TurnWriter.open(database)
    keys = KeyStore(database)
    tenant = await keys.ensure_tenant("acme")
    lineage = await keys.ensure_lineage("default", "tiny")
    key, _ = await keys.create(tenant, "ci", Role.AGENT, lineage)
    yield World(database, writer, AdminReads(database), tenant, key, lineage)
    await writer.close()
    await database.close()


async def test_sessions_come_in_pages_without_gap_or_repeat(world: World):
    # Three share one instant: the id tells them apart.
    seen = [1000.0, 2000.25, 2000.25, 2000.25, 1999.999999, 3000.0, 1.5]
    sessions = [world.session(seen_at=at) for at in seen]
    await world.writer.commit(*sessions, session(seen_at=5000.0))
    expected = [
        one.id for one in sorted(sessions, key=lambda one: (one.seen_at, one.id), reverse=True)
    ]
    found: list[UUID] = []
    cursor = None
    sizes = []
    while True:
        page = await world.admin.sessions(world.tenant, cursor=cursor, limit=2)
        sizes.append(len(page["items"]))
        found += [item["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert found == expected
    assert sizes == [2, 2, 2, 1]
    everyone = await world.admin.sessions(None)
    assert len(everyone["items"]) == 8
    assert everyone["next"] is None


@pytest.mark.parametrize(
    "cursor", ["", "x", "12", "12~x", f"-1~{UUID(int=1)}", f"{2**60}~{UUID(int=1)}"]
)
async def test_a_cursor_that_was_not_given_out_is_refused(world: World, cursor: str):
    with pytest.raises(InvalidRequest, match="cursor"):
        await world.admin.sessions(None, cursor=cursor)


async def test_a_session_in_the_list_says_how_it_went(world: World):
    one = world.session(external_id="chat", client="agent/1")
    turns = [turn(one), turn(one), turn(one, kind=TurnKind.SIDE)]
    await world.writer.commit(one, *turns)
    await world.writer.commit(*(next_state(record) for record in turns))
    await world.judge(1.0, -0.5)
    (item,) = (await world.admin.sessions(world.tenant))["items"]
    assert (item["turns"], item["main_turns"], item["scored_turns"]) == (3, 2, 2)
    assert item["mean_score"] == 0.25
    assert (item["external_id"], item["client"], item["key_name"]) == ("chat", "agent/1", "ci")
    assert item["last_seen"] == pytest.approx(max(record.created_at for record in turns), abs=1e-5)


async def test_a_session_shows_each_turn_to_its_end(world: World):
    one = world.session()
    first = turn(one)
    second = turn(one, first)
    said = FeedbackRecord(
        id=new_id(), tenant_id=world.tenant, turn_id=second.id, score=0.5, text="private"
    )
    await world.writer.commit(one, first, second, next_state(first, following_id=second.id), said)
    await world.judge(1.0, None)
    found = await world.admin.session(world.tenant, one.id)
    assert found is not None
    assert found["id"] == one.id
    shown = {item["id"]: item for item in found["items"]}
    followed, last = shown[first.id], shown[second.id]
    assert followed["next_state"]["following_id"] == second.id
    assert followed["next_state"]["messages"] == [{"role": "user", "content": "Thanks!"}]
    assert [judged["score"] for judged in followed["judgements"]] == [1.0]
    assert [sample["state"] for sample in followed["samples"]] == ["ready"]
    assert followed["verdict"] is None
    assert followed["reply"] == {"role": "assistant", "content": "Hello."}
    assert (last["parent_id"], last["shared_len"], last["prompt_len"]) == (first.id, 7, 10)
    assert last["next_state"] is None
    assert [one["text"] for one in last["feedback"]] == ["private"]
    assert last["verdict"]["reason"] == "no_rule_settled"

    bare = await world.admin.session(world.tenant, one.id, content=False)
    shown_bare = json.dumps(bare, default=str)
    for word in ("private", "Hello", "Thanks"):
        assert word not in shown_bare
    assert await world.admin.session(new_id(), one.id) is None
    assert await world.admin.session(None, new_id()) is None


async def train(world: World, count: int) -> StepRecord:
    policies, samples = PolicyStore(world.database), SampleStore(world.database)
    leader = await policies.become_leader(world.lineage)
    assert leader is not None
    ids = [head.id for head in await samples.window(world.lineage, count)]
    await samples.lease(world.lineage, leader.epoch, ids)
    step = StepRecord(
        id=new_id(),
        lineage_id=world.lineage,
        epoch=leader.epoch,
        from_version=0,
        to_version=await policies.allocate_version(world.lineage, leader.epoch),
        policy=PolicyRef(lineage_id=world.lineage, version=1, kind=PolicyKind.LORA, uri="/v1"),
        checkpoint="/state",
        sample_ids=tuple(ids),
        lags=tuple(range(len(ids))),
        metrics={"loss": 0.5},
        started_at=10.0,
        ended_at=20.0,
    )
    await policies.advance(step)
    await policies.promote(world.lineage, leader.epoch, 1)
    await leader.release()
    return step


async def test_the_funnel_adds_up(world: World):
    one = world.session()
    main = [turn(one) for _ in range(6)]
    untrainable = turn(one, trainable=False, untrainable_reason="temperature_zero")
    extra = [turn(one, kind=TurnKind.SIDE), turn(one, kind=TurnKind.UNKNOWN)]
    await world.writer.commit(one, *main, untrainable, *extra)
    for number, record in enumerate([*main[:5], untrainable]):
        await world.writer.commit(next_state(record, arrived_at=1000.0 + number))
    await world.judge(1.0, 1.0, -1.0, 0.0, None, 1.0)
    await train(world, 2)
    other = session()
    await world.writer.commit(other, turn(other))
    found = await world.admin.funnel(world.tenant)
    assert found == {
        "turns": 9,
        "main": 7,
        "side": 1,
        "unknown": 1,
        "trainable": 6,
        "with_next_state": 6,
        "judging": 0,
        "scored": 5,
        "samples": {"ready": 1, "leased": 0, "trained": 2, "dropped": 0},
        "trained": 2,
        "dropped": {},
        "untrainable": {"temperature_zero": 1},
        "unscored": {"score_zero": 1, "no_rule_settled": 1},
    }
    await TurnStore(world.database, 1).end_session(world.tenant, one.id, "done")
    found = await world.admin.funnel(world.tenant)
    # The last main turn, and the one that was never extended.
    assert found["unscored"] == {"no_next_state": 2, "score_zero": 1, "no_rule_settled": 1}
    assert (await world.admin.funnel(None))["turns"] == 10
    assert (await world.admin.funnel(None, since=time.time() - 600))["turns"] == 10
    assert (await world.admin.funnel(None, since=time.time() + 600))["turns"] == 0


async def test_versions_steps_and_swaps_are_listed_to_those_who_use_the_lineage(world: World):
    one = world.session()
    turns = [turn(one) for _ in range(3)]
    await world.writer.commit(one, *turns, *(next_state(record) for record in turns))
    await world.judge(1.0, 1.0, 1.0)
    step = await train(world, 3)
    swap = SwapRecord(
        lineage_id=world.lineage, engine="e", from_version=0, to_version=1, outcome="loaded",
        started_at=1.0, ended_at=2.0,
    )  # fmt: skip
    await PolicyStore(world.database).record_swap(swap)
    for tenant in (world.tenant, None):
        versions = await ledger.policies(world.database, tenant, None, None, 100)
        assert [(row["version"], row["state"]) for row in versions["items"]] == [
            (1, "live"),
            (0, "retired"),
        ]
        (found,) = (await ledger.train_steps(world.database, tenant, None, None, 100))["items"]
        assert (found["id"], found["samples"], found["lag_max"]) == (step.id, 3, 2)
        assert (found["started_at"], found["ended_at"]) == (10.0, 20.0)
        (moved,) = (await ledger.swaps(world.database, tenant, world.lineage, None, 100))["items"]
        assert (moved["engine"], moved["outcome"]) == ("e", "loaded")
    stranger = new_id()
    for asked in (ledger.policies, ledger.train_steps, ledger.swaps):
        of_stranger = await asked(world.database, stranger, None, None, 100)
        assert of_stranger["items"] == []
        of_none = await asked(world.database, None, new_id(), None, 100)
        assert of_none["items"] == []


async def test_the_status_says_what_waits_and_who_is_alive(world: World):
    one = world.session()
    turns = [turn(one) for _ in range(3)]
    await world.writer.commit(one, *turns)
    for number, record in enumerate(turns):
        await world.writer.commit(next_state(record, arrived_at=1000.0 + number))
    (job,) = await JudgeClaims(world.database).claim(WORKER, 1, 60)
    judgement = Judgement(judge="rules", score=1.0)
    await JudgeClaims(world.database).finish(WORKER, job, judgement, "binary")
    await JudgeClaims(world.database).claim(WORKER, 1, 60)
    async with Heartbeat(world.database, "judge", lambda: {"done": 1}):
        found = await world.admin.status(None)
        seen_by_tenant = await world.admin.status(world.tenant)
    assert found["jobs"] == {"queued": 1, "leased": 1, "oldest_at": 1002.0}
    assert found["sessions_open"] == 1
    (lineage,) = found["lineages"]
    assert (lineage["name"], lineage["live_version"], lineage["ready"]) == ("default", 0, 1)
    assert (lineage["steps"], lineage["last_step_at"], lineage["trains"]) == (0, None, True)
    assert [(one["kind"], one["detail"]) for one in found["workers"]] == [("judge", {"done": 1})]
    assert "detail" not in seen_by_tenant["workers"][0]
    assert seen_by_tenant["jobs"] == found["jobs"]
    stranger = await world.admin.status(new_id())
    assert stranger["lineages"] == []
    assert stranger["jobs"] == {"queued": 0, "leased": 0, "oldest_at": None}
    assert stranger["sessions_open"] == 0
