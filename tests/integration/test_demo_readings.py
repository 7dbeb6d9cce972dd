"""The demo reads what the gateway, the judge and the trainer store; here rows stand for them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from gateway.demo.readings import Reader, Turn
from gateway.records import new_id
from gateway.store.database import Database

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class World:
    """Inserts just what a test names; every other column is the least that is allowed."""

    database: Database
    tenant: UUID = field(default_factory=new_id)
    trained: UUID = field(default_factory=new_id)
    control: UUID = field(default_factory=new_id)

    async def insert(self, table: str, **values: Any) -> None:
        columns = ", ".join(values)
        marks = ", ".join(f"${n}" for n in range(1, len(values) + 1))
        sql = f"INSERT INTO {table} ({columns}) VALUES ({marks})"
        await self.database.execute(sql, *values.values())

    async def setup(self) -> None:
        await self.insert("tenants", id=self.tenant, name="demo")
        for lineage, name in ((self.trained, "arm"), (self.control, "control")):
            await self.insert("lineages", id=lineage, name=name, base_model="m", kind="lora")

    async def key(self, name: str, lineage: UUID) -> UUID:
        row = new_id()
        await self.insert(
            "api_keys", id=row, tenant_id=self.tenant, lineage_id=lineage, name=name, hint="h",
            digest=row.bytes * 2, role="agent",
        )  # fmt: skip
        return row

    async def session(self, key: UUID, lineage: UUID) -> UUID:
        row = new_id()
        await self.insert(
            "sessions", id=row, tenant_id=self.tenant, key_id=key, lineage_id=lineage,
            resolved_by="new", model="m", first_seen=NOW, last_seen=NOW,
        )  # fmt: skip
        return row

    async def turn(self, session: UUID, lineage: UUID, *, spans: list[list[int]],
                   question: str = "Why?", reply: str = "So.", kind: str = "main",
                   parent: UUID | None = None, retry_of: UUID | None = None,
                   score: float | None = None, followed: bool = True) -> UUID:  # fmt: skip
        row, length = new_id(), spans[-1][2]
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": question}]
        await self.insert(
            "turns", id=row, tenant_id=self.tenant, session_id=session, lineage_id=lineage,
            parent_id=parent, retry_of=retry_of, depth=0 if parent is None else 1, kind=kind,
            kind_rule="r", kind_confidence=1.0, resolve_rule="r", dialect="d", model="m",
            engine="e", request_hash=b"", chain_hash=bytes(32), message_count=2,
            messages=await self.jsonb(messages),
            reply=await self.jsonb({"role": "assistant", "content": reply}),
            tools_hash=b"", prompt_len=1, shared_len=0, completion_len=length,
            prompt_ids=bytes(4), sampled_ids=bytes(4 * length), logprobs=bytes(4 * length),
            spans=await self.jsonb(spans), version_min=min(s[0] for s in spans),
            version_max=max(s[0] for s in spans), sampling=await self.jsonb({}),
            finish_reason="stop", trainable=True, cached_tokens=0, queued_ms=0.0, total_ms=1.0,
            created_at=NOW,
        )  # fmt: skip
        if followed:
            await self.insert(
                "next_states", turn_id=row, tenant_id=self.tenant, following_id=new_id(),
                messages=await self.jsonb([]), role="user", arrived_at=NOW,
            )  # fmt: skip
        if score is not None:
            await self.judge(row, score)
        return row

    async def judge(self, turn: UUID, score: float, nth: int = 1, state: str = "done") -> None:
        await self.insert(
            "judgements", turn_id=turn, tenant_id=self.tenant, round=nth, state=state,
            score=score,
        )  # fmt: skip

    async def jsonb(self, value: Any) -> Any:
        """`value` as this pool's connections take JSONB."""
        try:
            await self.database.fetchval("SELECT $1::jsonb", value)
        except asyncpg.DataError:
            return json.dumps(value)
        return value


@pytest.fixture
async def world(database: Database) -> World:
    world = World(database)
    await world.setup()
    return world


def reader(world: World) -> Reader:
    return Reader(world.database, world.trained, world.control)


async def test_nothing_yet(world: World) -> None:
    readings = await reader(world).read()
    assert (readings.turns, readings.control, readings.facts) == ((), (), ())
    assert (readings.published, readings.version, readings.waiting) == (0, 0, 0)


async def test_first_turns_of_both_arms_with_their_persons_and_scores(world: World) -> None:
    key = await world.key("user-1", world.trained)
    other = await world.key("user-2", world.control)
    session = await world.session(key, world.trained)
    first = await world.turn(
        session, world.trained, spans=[[3, 0, 7]], question="How?", reply="Thus.", score=-1.0
    )
    await world.turn(session, world.trained, spans=[[3, 0, 2]], parent=first, score=1.0)
    await world.turn(session, world.trained, spans=[[3, 0, 2]], retry_of=first, score=1.0)
    await world.turn(await world.session(other, world.control), world.control, spans=[[0, 0, 5]])
    readings = await reader(world).read()
    assert readings.turns == (
        Turn(person="user-1", question="How?", reply="Thus.", version=3, tokens=7, score=-1.0),
    )
    assert readings.control == (
        Turn(person="user-2", question="Why?", reply="So.", version=0, tokens=5, score=None),
    )


async def test_a_turn_of_two_versions_belongs_to_neither(world: World) -> None:
    session = await world.session(await world.key("u", world.trained), world.trained)
    await world.turn(session, world.trained, spans=[[1, 0, 2], [2, 2, 5]])
    assert [turn.version for turn in (await reader(world).read()).turns] == [None]


async def test_the_last_finished_round_of_judging_counts(world: World) -> None:
    session = await world.session(await world.key("u", world.trained), world.trained)
    turn = await world.turn(session, world.trained, spans=[[0, 0, 2]], score=-1.0)
    await world.judge(turn, 0.5, nth=2)
    await world.judge(turn, 1.0, nth=3, state="leased")
    assert [turn.score for turn in (await reader(world).read()).turns] == [0.5]


async def test_side_turns_are_the_facts(world: World) -> None:
    session = await world.session(await world.key("facts", world.trained), world.trained)
    await world.turn(session, world.trained, spans=[[4, 0, 2]], kind="side", reply="Paris")
    readings = await reader(world).read()
    assert readings.turns == ()
    assert [(turn.version, turn.reply) for turn in readings.facts] == [(4, "Paris")]


async def test_turns_that_are_followed_wait_until_they_have_a_verdict(world: World) -> None:
    session = await world.session(await world.key("u", world.trained), world.trained)
    settled = await world.turn(session, world.trained, spans=[[0, 0, 2]])
    await world.insert("verdicts", turn_id=settled, outcome="dropped", reason="stale")
    await world.turn(session, world.trained, spans=[[0, 0, 2]])
    await world.turn(session, world.trained, spans=[[0, 0, 2]], parent=settled)
    await world.turn(session, world.trained, spans=[[0, 0, 2]], followed=False)
    assert (await reader(world).read()).waiting == 2


async def test_versions_that_went_live_with_swaps_and_lags(world: World) -> None:
    await world.insert(
        "policies", lineage_id=world.trained, version=0, kind="base", state="retired", live_at=NOW
    )
    for version, live in ((1, NOW), (2, NOW), (3, None)):
        await world.insert(
            "policies", lineage_id=world.trained, version=version, kind="lora",
            state="candidate", live_at=live,
        )  # fmt: skip
    for engine, load_ms in (("a", 80.0), ("b", 120.0)):
        await world.insert(
            "swaps", id=new_id(), lineage_id=world.trained, engine=engine, from_version=0,
            to_version=1, outcome="loaded", load_ms=load_ms, started_at=NOW, ended_at=NOW,
        )  # fmt: skip
    step = new_id()
    await world.insert(
        "train_steps", id=step, lineage_id=world.trained, epoch=1, from_version=1, to_version=2,
        metrics=await world.jsonb({}), started_at=NOW, ended_at=NOW,
    )  # fmt: skip
    for lag, state in ((0, "trained"), (1, "trained"), (4, "dropped")):
        await world.insert(
            "samples", id=new_id(), turn_id=new_id(), session_id=new_id(),
            lineage_id=world.trained, method="binary", score=1.0, version_min=0, arrived_at=NOW,
            state=state, step_id=step, version_lag=lag,
        )  # fmt: skip
    readings = await reader(world).read()
    assert (readings.published, readings.version) == (2, 2)
    assert readings.swap_ms == {1: 120.0, 2: None}
    assert readings.lag_max == {2: 1}
