"""A database with something of everything that operators look at, its numbers known.

Tenant `one` has a session of five turns and one of a single turn; tenant `other` has one of its
own. One training step has made version 1, which an engine was given.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.config import DatabaseSettings
from gateway.records import (
    FeedbackRecord,
    Judgement,
    PolicyKind,
    PolicyRef,
    SessionRecord,
    StepRecord,
    SwapRecord,
    TurnKind,
    TurnRecord,
    VersionSpan,
    new_id,
)
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.workers import Heartbeat
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn
from tests.running import Keys

#: Scores of the turns of `one` that were judged, by the version that sampled them.
SCORES = {0: (1.0, -1.0, 0.0), 1: (1.0, 1.0)}
#: What turns of `one` say; nothing of `other` does.
SECRET = "the kettle is blue"
THEIRS = "the teapot is green"

CALL = {
    "role": "assistant",
    "content": SECRET,
    "tool_calls": [
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in ("look", "look", "turn")
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """Ids of what is there. `turns` are those of the long session: a root, its two children, a
    child of the second, and a side call.
    """

    lineage: UUID
    long: SessionRecord
    short: SessionRecord
    theirs: SessionRecord
    turns: tuple[TurnRecord, ...]
    last: TurnRecord
    their_turn: TurnRecord
    step: UUID


def spans(version: int) -> dict[str, Any]:
    return {"spans": (VersionSpan(version=version, start=0, end=4),)}


@asynccontextmanager
async def seeded(database_url: str, keys: Keys, home: Path) -> AsyncIterator[Seeded]:
    """Fill a database; a judge with an alarm and a trainer are alive while the block runs."""
    settings = DatabaseSettings(spool=home / "seeding")
    async with AsyncExitStack() as stack:
        database = await Database.open(settings, database_url, application="seeding")
        stack.push_async_callback(database.close)
        writer = await TurnWriter.open(database)
        found = await _fill(database, writer, keys)
        await writer.close()
        for kind, detail in _details(found.lineage).items():
            await stack.enter_async_context(Heartbeat(database, kind, lambda told=detail: told))
        yield found


def _details(lineage: UUID) -> dict[str, dict[str, Any]]:
    return {
        "judge": {
            "scored": 6,
            "in_hand": 1,
            "alarms": ["disagreement"],
            "health": {"judgements": 6, "disagreement": 0.5, "feedback_kappa": None},
        },
        "trainer": {
            "batch": 16,
            "lineages": {lineage.hex: {"leads": True, "live": 1}, new_id().hex: {"leads": True}},
        },
    }


async def _fill(database: Database, writer: TurnWriter, keys: Keys) -> Seeded:
    store = KeyStore(database)
    one, other = await store.ensure_tenant("one"), await store.ensure_tenant("other")
    names = {"lineage_id": keys.lineage_id, "key_id": new_id()}
    long = session(tenant_id=one, external_id="chat-1", client="agent/1", **names)
    short = session(tenant_id=one, client="agent/2", **names)
    theirs = session(tenant_id=other, client="agent/1", **names)
    reply = {"reply": {"role": "assistant", "content": SECRET}}
    root = turn(long, reply=CALL, **spans(0))
    left, right = turn(long, root, **reply, **spans(0)), turn(long, root, **reply, **spans(0))
    deep = turn(long, right, **reply, **spans(1))
    side = turn(long, kind=TurnKind.SIDE, **reply, **spans(0))
    last = turn(short, **reply, **spans(1))
    their_turn = turn(theirs, reply={"role": "assistant", "content": THEIRS}, **spans(0))
    judged = (root, left, right, deep, last)
    await writer.commit(long, root, left, right, deep, side)
    await writer.commit(short, last)
    await writer.commit(theirs, their_turn, next_state(their_turn))
    await _judge(database, (0.5,))
    for record, score in zip(judged, (*SCORES[0], *SCORES[1]), strict=True):
        await writer.commit(next_state(record))
        await _judge(database, (score,))
    said = FeedbackRecord(id=new_id(), tenant_id=one, turn_id=root.id, score=1.0, text=SECRET)
    await writer.commit(said)
    step = await _train(database, keys.lineage_id, [root.id, left.id])
    await database.execute(
        "INSERT INTO events (name, tenant_id, detail) VALUES ('retention', $1, $2)",
        other,
        {"turns": 3},
    )
    return Seeded(
        lineage=keys.lineage_id,
        long=long,
        short=short,
        theirs=theirs,
        turns=(root, left, right, deep, side),
        last=last,
        their_turn=their_turn,
        step=step,
    )


async def _judge(database: Database, scores: tuple[float, ...]) -> None:
    worker, claims = new_id(), JudgeClaims(database)
    jobs = await claims.claim(worker, 100, 60)
    for job, score in zip(jobs, scores, strict=True):
        judgement = Judgement(judge="rules", rule="thanks", score=score, reason=SECRET)
        await claims.finish(worker, job, judgement, "binary")


async def _train(database: Database, lineage: UUID, turns: list[UUID]) -> UUID:
    policies, samples = PolicyStore(database), SampleStore(database)
    leader = await policies.become_leader(lineage)
    assert leader is not None
    rows = await database.fetch(
        "SELECT id FROM samples WHERE turn_id = ANY($1::uuid[]) ORDER BY id", turns
    )
    ids = [row["id"] for row in rows]
    await samples.lease(lineage, leader.epoch, ids)
    version = await policies.allocate_version(lineage, leader.epoch)
    step = StepRecord(
        id=new_id(),
        lineage_id=lineage,
        epoch=leader.epoch,
        from_version=0,
        to_version=version,
        policy=PolicyRef(lineage_id=lineage, version=1, kind=PolicyKind.LORA, uri="/v1"),
        checkpoint="/state",
        sample_ids=tuple(ids),
        lags=(0, 2),
        metrics={"loss": 0.5, "entropy": 1.25},
        started_at=time.time() - 90,
        ended_at=time.time() - 60,
    )
    await policies.advance(step)
    await policies.promote(lineage, leader.epoch, version)
    await policies.record_swap(
        SwapRecord(
            lineage_id=lineage,
            engine="engine",
            from_version=0,
            to_version=1,
            outcome="loaded",
            load_ms=40.0,
            started_at=time.time() - 60,
            ended_at=time.time() - 59,
        )
    )
    await leader.release()
    return step.id
