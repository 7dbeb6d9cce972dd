"""A million turns, cleared part by part and at last deleted, while a gateway goes on storing.

What it takes is said as a share of what it took to insert the same rows, in
`build/proof/operate/retention.json`. `RETENTION_TURNS` is how many there are.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest

from gateway.config import DatabaseSettings, RetentionSettings
from gateway.local.postgres import EmbeddedPostgres
from gateway.records import new_id
from gateway.store.database import Database, migrate
from gateway.store.expiry import Part
from gateway.store.retention import Retention
from gateway.store.turn_rows import OF_TURNS
from gateway.store.writer import TurnWriter
from tests.factories import next_state, session, turn
from tests.proof.operate.crowd import DAY, Crowd

TURNS = int(os.environ.get("RETENTION_TURNS", "1000000"))
#: So many are stored as gateways do; the rest are copies of them.
STORED = min(10_000, TURNS)
#: What clearing one part may take, of what inserting took. Measured: see docs/privacy.md.
MOST = 3.0
RECORD = Path("build/proof/operate/retention.json")
SETTINGS = RetentionSettings(turns_per_s=1_000_000_000)


@dataclass
class Traffic:
    """Turns that a gateway commits all the while, and how long each commit took."""

    database: Database
    waits_s: list[float] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        writer = await TurnWriter.open(self.database)
        of, before = session(), None
        try:
            while not stop.is_set():
                one = turn(of, before)
                began = time.monotonic()
                await writer.commit(of, one, *([next_state(before)] if before else []))
                self.waits_s.append(time.monotonic() - began)
                before = one
                await asyncio.sleep(0.02)
        finally:
            assert not writer.spooled
            await writer.close()

    def told(self) -> str:
        waits = sorted(self.waits_s)
        middle, most = waits[len(waits) // 2], waits[-1]
        return (
            f"{len(waits)} commits, {1e3 * middle:.1f} ms at the median, {1e3 * most:.0f} at most"
        )


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """A database of its own, as durable as it comes."""
    home = Path(tempfile.mkdtemp(prefix="nxr-"))
    postgres = EmbeddedPostgres(home, settings={"max_wal_size": "4GB"})
    postgres.start()
    try:
        await migrate(postgres.url)
        yield postgres.url
    finally:
        postgres.stop()
        shutil.rmtree(home)


@pytest.mark.timeout(3600)
async def test_a_million_turns_are_cleared_in_a_share_of_the_time_they_took(
    server: str, tmp_path: Path
) -> None:
    settings = DatabaseSettings(spool=tmp_path / "spool", command_timeout_s=60)
    database = await Database.open(settings, server, application="proof")
    tenant, lineage, now = new_id(), new_id(), time.time()
    await database.execute(
        "INSERT INTO tenants (id, name, settings) VALUES ($1, 'one', '{}')", tenant
    )
    await database.execute(
        "INSERT INTO lineages (id, name, base_model, kind) VALUES ($1, 'l', 'm', 'lora')", lineage
    )
    connection = await database.connect(statement_timeout="0")
    copies = TURNS // STORED - 1
    apart_s = 200 * DAY / (copies + 1)
    crowd = Crowd(
        tenant=tenant,
        lineage=lineage,
        turns=STORED,
        first_at=now - 300 * DAY,
        last_at=now - 300 * DAY + 0.9 * apart_s,
    )
    stored_s = await crowd.settle(connection) * TURNS / STORED
    inserted_s = await crowd.multiply(connection, copies, apart_s) * TURNS / max(1, TURNS - STORED)
    count = await database.fetchval("SELECT count(*) FROM turns")
    assert count == STORED * (copies + 1)
    record: dict[str, object] = {
        "count": count,
        "inserted_in_bulk_s": round(inserted_s, 1),
        "stored_as_gateways_do_s": round(stored_s, 1),
    }

    traffic, stop = Traffic(database), asyncio.Event()
    storing = asyncio.create_task(traffic.run(stop))
    for part in (Part.TEXT, Part.TOKENS, Part.SCORES, Part.TURNS):
        await database.execute(
            "UPDATE tenants SET settings = $1", {"retention": {f"{part.value}_days": 30}}
        )
        done = await Retention(database, SETTINGS).run(now)
        assert done is not None
        assert (done.turns, done.dropped, done.waiting) == ({part.value: count}, 0, [])
        share = done.seconds / inserted_s
        record[part.value] = {
            "seconds": done.seconds,
            "of_inserting_in_bulk": round(share, 3),
            "of_storing_as_gateways_do": round(done.seconds / stored_s, 3),
        }
        keep(record)
        assert share < MOST
    assert not storing.done()
    stop.set()
    await storing
    keep(record | {"stored_meanwhile": traffic.told()})
    assert await left(connection, tenant) == dict.fromkeys((*OF_TURNS, "turns", "sessions"), 0)
    assert await database.fetchval("SELECT count(*) FROM turns") == len(traffic.waits_s)
    connection.terminate()
    await database.close()


def keep(record: dict[str, object]) -> None:
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1))


async def left(connection: asyncpg.Connection, tenant: object) -> dict[str, int]:
    """Rows of the tenant; of tables without one, those whose turn is gone."""
    counts = {}
    for table in (*OF_TURNS, "turns", "sessions"):
        where = "tenant_id = $1"
        if table in ("samples", "verdicts"):
            where = "$1::uuid IS NOT NULL AND turn_id NOT IN (SELECT id FROM turns)"
        counts[table] = await connection.fetchval(
            f"SELECT count(*) FROM {table} WHERE {where}", tenant
        )
    return counts
