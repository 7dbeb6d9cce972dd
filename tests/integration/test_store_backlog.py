"""Ten thousand turns wait when a trainer starts: the newest are kept, the others have a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from gateway.config import DatabaseSettings
from gateway.errors import NotLeader
from gateway.records import Judgement, new_id
from gateway.store.claims import JudgeClaims
from gateway.store.database import Database
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from gateway.store.samples import SampleStore
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn
from tests.training import World, open_world
from trainer.config import TrainerSettings
from trainer.sampling import Sampler

KEEP = 5 * 16

# Copies of one turn, one second apart: the odd ones are judged, the even ones wait for a judge.
_COPIES = """
WITH copies AS (
    INSERT INTO turns SELECT (t.r).* FROM (
        SELECT jsonb_populate_record(t, jsonb_build_object('id', uuidv7(), 'depth', n)) AS r
        FROM turns t, generate_series(1, $2) AS n WHERE t.id = $1
    ) AS t RETURNING *
), followed AS (
    INSERT INTO next_states (turn_id, tenant_id, following_id, messages, role, arrived_at)
    SELECT id, tenant_id, id, '[]', 'user', to_timestamp(depth) FROM copies
), judged AS (
    INSERT INTO samples (id, turn_id, session_id, lineage_id, method, score, version_min,
        arrived_at)
    SELECT id, id, session_id, lineage_id, 'binary', 1, version_min, to_timestamp(depth)
    FROM copies WHERE depth % 2 = 1
)
INSERT INTO judgements (turn_id, tenant_id, state)
SELECT id, tenant_id, CASE depth % 2 WHEN 1 THEN 'done' ELSE 'queued' END FROM copies
"""


@pytest.fixture
async def writer(database: Database, tmp_path: Path) -> AsyncIterator[TurnWriter]:
    spooled = Database(
        database.pool, database._url, DatabaseSettings(spool=tmp_path / "spool"), "test"
    )
    writer = await TurnWriter.open(spooled)
    yield writer
    await writer.close()


async def _waiting(database: Database, writer: TurnWriter, lineage: UUID, count: int) -> None:
    one = session(lineage_id=lineage)
    first = turn(one)
    await writer.commit(one, first)
    await database.execute(_COPIES, first.id, count)
    await database.execute("DELETE FROM turns WHERE id = $1", first.id)


def _sampler(database: Database, lineage: UUID) -> Sampler:
    settings = TrainerSettings(freshness={"max_lag": 4, "batch": 16})
    return Sampler(SampleStore(database), lineage, settings, 1000)


async def test_the_newest_of_ten_thousand_are_kept(database: Database, writer: TurnWriter) -> None:
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    other = await KeyStore(database).ensure_lineage("other", "tiny")
    await _waiting(database, writer, lineage, 10_000)
    await _waiting(database, writer, other, 200)
    leadership = await PolicyStore(database).become_leader(lineage)
    assert leadership is not None
    sampler = _sampler(database, lineage)

    assert await sampler.cut(leadership.epoch, now=0.0, start=True) == 10_000 - KEEP

    verdicts = await database.fetch(
        "SELECT v.outcome, v.reason, t.depth FROM verdicts v JOIN turns t ON t.id = v.turn_id"
    )
    assert Counter((v["outcome"], v["reason"]) for v in verdicts) == {
        ("dropped", "backlog"): 10_000 - KEEP
    }
    assert {v["depth"] for v in verdicts} == set(range(1, 10_001 - KEEP))
    left = await database.fetch(
        "SELECT t.depth FROM turns t WHERE t.lineage_id = $1 AND (t.id IN"
        " (SELECT turn_id FROM samples WHERE state = 'ready') OR t.id IN"
        " (SELECT turn_id FROM judgements WHERE state = 'queued'))",
        lineage,
    )
    assert {row["depth"] for row in left} == set(range(10_001 - KEEP, 10_001))
    reasons = await database.fetch(
        "SELECT state, reason, count(*) AS n FROM samples WHERE lineage_id = $1 GROUP BY 1, 2",
        lineage,
    )
    assert {tuple(row) for row in reasons} == {
        ("ready", None, KEEP // 2),
        ("dropped", "backlog", (10_000 - KEEP) // 2),
    }
    # Another start finds nothing more to drop.
    assert await sampler.cut(leadership.epoch, now=0.0, start=True) == 0
    await leadership.release()


async def test_a_running_trainer_cuts_only_beyond_the_hard_cap(
    database: Database, writer: TurnWriter
) -> None:
    """The judge was away while the trainer ran: then too the newest are kept."""
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    leadership = await PolicyStore(database).become_leader(lineage)
    assert leadership is not None
    await _waiting(database, writer, lineage, 4 * KEEP)
    sampler = _sampler(database, lineage)
    assert await sampler.cut(leadership.epoch, now=1000.0) == 0
    await _waiting(database, writer, lineage, 1)
    assert await sampler.cut(leadership.epoch, now=1001.0) == 0, "it looks once a poll"
    assert await sampler.cut(leadership.epoch, now=1006.0) == 3 * KEEP + 1
    await leadership.release()


async def test_what_a_judge_has_in_hand_stays(database: Database, writer: TurnWriter) -> None:
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    one = session(lineage_id=lineage)
    first = turn(one)
    await writer.commit(one, first, next_state(first, arrived_at=0.0))
    claims, worker = JudgeClaims(database), new_id()
    (job,) = await claims.claim(worker, 1, 60)
    await _waiting(database, writer, lineage, 2 * KEEP)
    leadership = await PolicyStore(database).become_leader(lineage)
    assert leadership is not None
    assert await _sampler(database, lineage).cut(leadership.epoch, now=0.0, start=True) == KEEP
    assert await claims.finish(worker, job, Judgement(judge="rules", score=1.0), "binary")
    assert (await SampleStore(database).window(lineage, 1))[0].turn_id == first.id
    await leadership.release()


async def test_only_the_leader_cuts(database: Database, writer: TurnWriter) -> None:
    lineage = await KeyStore(database).ensure_lineage("default", "tiny")
    await _waiting(database, writer, lineage, KEEP + 1)
    old = await PolicyStore(database).become_leader(lineage)
    assert old is not None
    await old.release()
    new = await PolicyStore(database).become_leader(lineage)
    assert new is not None
    with pytest.raises(NotLeader):
        await _sampler(database, lineage).cut(old.epoch, now=0.0, start=True)
    assert await database.fetchval("SELECT count(*) FROM verdicts") == 0
    await new.release()


async def test_a_trainer_that_starts_trains_the_newest(
    database_url: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of four at a lag of two at most: of fifteen turns twelve can be trained on."""
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")
    async with open_world(database_url, tiny_model, tmp_path) as world:
        turns = await world.judged(15)
        async with world.training():
            await world.until(lambda: _trained(world, 12))
        rows = await world.database.fetch("SELECT turn_id, outcome, reason FROM verdicts")
        found = {row["turn_id"]: (row["outcome"], row["reason"]) for row in rows}
        assert [found[turn] for turn in turns[:3]] == [("dropped", "backlog")] * 3
        assert [found[turn] for turn in turns[3:]] == [("trained", "trained")] * 12


async def _trained(world: World, count: int) -> bool:
    return bool(
        await world.database.fetchval(
            "SELECT count(*) = $1 FROM verdicts WHERE outcome = 'trained'", count
        )
    )
