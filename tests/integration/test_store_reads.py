"""What operators look at again and again reads the time that it is about, not all there is."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from gateway.records import TurnRecord, VersionSpan, new_id
from gateway.store.database import Database
from gateway.store.overview import COUNTS, SAMPLE_STATES, VERDICTS
from gateway.store.periods import FIRST, LAST, bounds, first_id
from gateway.store.scores import By, statement
from gateway.store.staleness import USED, WAITING
from gateway.store.traffic import TRAFFIC
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn

OLD, NEW = 1000, 5
DAY_S = 86_400


FILLING = (
    "UPDATE judgements SET state = 'done', score = 1, judge = 'rules', done_at = now()",
    "INSERT INTO verdicts (turn_id, outcome, reason) SELECT id, 'dropped', 'x' FROM turns",
    """INSERT INTO samples (id, turn_id, session_id, lineage_id, method, score, version_min,
        arrived_at, state)
    SELECT id, id, session_id, lineage_id, 'binary', 1, 0, created_at, 'dropped' FROM turns""",
    "ANALYZE",
)


def old_id() -> UUID:
    """As if made a day ago."""
    return UUID(int=first_id(time.time() - DAY_S).int | new_id().int & (1 << 76) - 1)


@pytest.fixture
async def filled(database: Database) -> tuple[Database, UUID]:
    """Many turns of yesterday and a few of today, judged, sampled and with verdicts."""
    writer = await TurnWriter.open(database)
    one = session()

    def made(**values: Any) -> TurnRecord:
        spans = (VersionSpan(version=0, start=0, end=4),)
        return turn(one, messages=(), spans=spans, **values)

    turns = [made(id=old_id()) for _ in range(OLD)] + [made() for _ in range(NEW)]
    await writer.commit(one, *turns)
    await writer.commit(*(next_state(each) for each in turns))
    await writer.close()
    for sql in FILLING:
        await database.execute(sql)
    return database, one.tenant_id


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from nodes(below)


async def read(
    database: Database, sql: str, *values: object, mode: str = "auto"
) -> dict[str, float]:
    """Rows that a query took from each table, those thrown away included."""
    async with database.transaction() as connection:
        await connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        plan = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT json) {sql}", *values)
    found: dict[str, float] = {}
    for node in nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]):
        if (name := node.get("Relation Name")) in LARGE:
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            found[name] = found.get(name, 0) + rows * node["Actual Loops"]
    return found


LARGE = ("turns", "judgements", "verdicts", "samples", "next_states")


def queries(tenant: UUID | None, since: float) -> Iterator[tuple[str, tuple[object, ...]]]:
    first, last = bounds(since, None)
    for by in By:
        yield statement(by), (first, last, tenant, None, None, None, 100, 60)
    yield TRAFFIC, (first, last, tenant, 10)
    for sql in (COUNTS, SAMPLE_STATES, VERDICTS):
        yield sql, (tenant, first)


async def test_a_stretch_of_time_is_read_by_its_ids(filled: tuple[Database, UUID]) -> None:
    """Also by a plan that was made for any stretch."""
    database, tenant = filled
    for mode in ("force_custom_plan", "force_generic_plan"):
        for sql, values in queries(tenant, time.time() - 3600):
            taken = await read(database, sql, *values, mode=mode)
            assert taken
            assert all(0 < rows <= 2 * NEW for rows in taken.values()), (mode, sql, taken)


async def test_staleness_reads_what_waits_and_what_the_last_steps_used(
    filled: tuple[Database, UUID],
) -> None:
    database, tenant = filled
    lineage = await database.fetchval("SELECT lineage_id FROM turns LIMIT 1")
    for sql, values in ((WAITING, ([lineage], tenant)), (USED, ([lineage], tenant, 20))):
        taken = await read(database, sql, *values)
        assert taken.get("samples", 0) == 0, (sql, taken)


def test_bounds_are_those_of_ids_made_then() -> None:
    now = time.time()
    made = new_id()
    first, last = bounds(now - 1, now + 1)
    assert first < made < last
    assert not first_id(now + 1) <= made
    assert bounds(None, None) == (FIRST, LAST)
    assert first_id(0.0) == UUID(int=0)
    # Beyond what an id can tell, the last one that it can.
    assert first_id(2.0**60).int >> 80 == 2**48 - 1
