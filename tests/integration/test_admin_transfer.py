"""Turns go out of one tenant as they are stored, and into another as an archive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from gateway.records import Role
from gateway.store.keys import KeyStore
from gateway.store.turn_export import exported as exported_pages
from gateway.store.turn_filters import TurnFilters
from tests.fixtures_engine import engine_python
from tests.fixtures_gateway import Gateway
from tests.seeded import SECRET, THEIRS, Seeded, seeded

#: What an independent reader makes of the file, in the engine's environment.
READ = """
import json, sys
import pyarrow.parquet as parquet
table = parquet.read_table(sys.argv[1])
print(json.dumps([dict(row, created_at=row["created_at"].timestamp(),
    **{k: row[k] and list(row[k]) for k in ("prompt_ids", "sampled_ids", "logprobs")})
    for row in table.to_pylist()]))
"""


@pytest.fixture
async def world(gateway: Gateway, database_url: str, tmp_path: Path) -> AsyncIterator[Seeded]:
    async with seeded(database_url, gateway.keys, tmp_path) as found:
        yield found


async def exported(gateway: Gateway, key: str | None = None, **query: str) -> bytes:
    headers = {"authorization": f"Bearer {key or gateway.keys.admin}"}
    url = f"{gateway.url}/admin/v1/export"
    async with aiohttp.ClientSession() as http, http.get(url, params=query, headers=headers) as got:
        assert got.status == 200, await got.text()
        return await got.read()


async def imported(gateway: Gateway, key: str, data: bytes) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/x-ndjson"}
    url = f"{gateway.url}/admin/v1/import"
    async with aiohttp.ClientSession() as http, http.post(url, data=data, headers=headers) as got:
        return got.status, await got.json(content_type=None)


async def admin_of(gateway: Gateway, tenant: str) -> str:
    keys = KeyStore(gateway.services.database)
    tenant_id = await keys.ensure_tenant(tenant)
    return (await keys.create(tenant_id, "admin", Role.ADMIN, gateway.keys.lineage_id))[1]


async def test_a_tenant_moves_with_its_histories(gateway: Gateway, world: Seeded) -> None:
    data = await exported(gateway, ids="true")
    lines = [json.loads(line) for line in data.splitlines()]
    ours = [*world.turns, world.last]
    assert [one["turn"]["id"] for one in lines] == sorted(str(turn.id) for turn in ours)
    assert THEIRS.encode() not in data
    root = next(one for one in lines if one["turn"]["id"] == str(world.turns[0].id))
    assert (root["score"], root["verdict"]["outcome"]) == (1.0, "trained")
    assert (root["turn"]["sampled_ids"], root["turn"]["prompt_ids"]) == (
        [10, 11, 12, 13],
        [1, 2, 3],
    )

    admin = await admin_of(gateway, "elsewhere")
    assert await imported(gateway, admin, data) == (200, {"lines": 6, "turns": 6, "present": 0})
    # Where it came from it is there, and a second time it is there too.
    assert (await imported(gateway, gateway.keys.admin, data))[1]["present"] == 6
    assert (await imported(gateway, admin, data + data))[1] == {
        "lines": 12, "turns": 0, "present": 12,
    }  # fmt: skip

    again = [json.loads(line) for line in (await exported(gateway, admin)).splitlines()]
    # Ids of one millisecond are in no order that would stay.
    for found in (lines, again):
        found.sort(key=lambda one: one["turn"]["created_at"])
    assert [one["turn"]["reply"] for one in again] == [one["turn"]["reply"] for one in lines]
    assert [one["score"] for one in again] == [one["score"] for one in lines]
    old = {one["turn"]["id"]: place for place, one in enumerate(lines)}
    new = {one["turn"]["id"]: place for place, one in enumerate(again)}
    assert not {*old} & {*new}
    parents = [old.get(one["turn"]["parent_id"]) for one in lines]
    assert [new.get(one["turn"]["parent_id"]) for one in again] == parents
    assert {one["turn"]["untrainable_reason"] for one in again} == {"imported"}
    assert {one["turn"]["version_min"] for one in again} == {None}
    outcomes = [one["verdict"] and one["verdict"]["outcome"] for one in again]
    kinds = [one["turn"]["kind"] for one in again]
    assert outcomes == [None if kind == "side" else "untrainable" for kind in kinds]


async def test_numbers_that_are_next_to_nothing_are_taken(gateway: Gateway, world: Seeded) -> None:
    line = json.loads((await exported(gateway, client="agent/2")).splitlines()[0])
    tiny = 1e-320
    line["turn"] |= dict.fromkeys(("queued_ms", "first_token_ms", "total_ms"), tiny)
    line["turn"] |= {"kind_confidence": tiny}
    line["judgements"] = [
        {"round": 1, "state": "done", "score": -tiny, "confidence": tiny, "done_at": 1.0}
    ]
    line["feedback"] = [{"id": str(world.last.id), "score": tiny, "created_at": 1.0}]
    admin = await admin_of(gateway, "elsewhere")
    status, told = await imported(gateway, admin, json.dumps(line).encode())
    assert (status, told) == (200, {"lines": 1, "turns": 1, "present": 0})
    [taken] = [json.loads(line) for line in (await exported(gateway, admin)).splitlines()]
    assert [taken["turn"][name] for name in ("queued_ms", "first_token_ms", "total_ms")] == [0] * 3
    assert taken["turn"]["kind_confidence"] == 0
    assert [one["score"] for one in (*taken["judgements"], *taken["feedback"])] == [0, 0]


async def test_what_is_forged_changes_nothing_of_anothers(gateway: Gateway, world: Seeded) -> None:
    line = json.loads((await exported(gateway, client="agent/2")).splitlines()[0])
    admin = await admin_of(gateway, "elsewhere")
    before = await gateway.rows(
        "SELECT count(*), max(last_seen) FROM sessions WHERE id = $1", world.short.id
    )
    line["turn"]["reply"]["content"] = "forged"
    line["feedback"] = [
        {"id": str(world.last.id), "score": -1, "source": "x", "created_at": 1.0, "text": ""}
    ]
    assert (await imported(gateway, admin, json.dumps(line).encode()))[0] == 200
    after = await gateway.rows(
        "SELECT count(*), max(last_seen) FROM sessions WHERE id = $1", world.short.id
    )
    assert before == after
    ours = await exported(gateway)
    assert b"forged" not in ours
    assert SECRET.encode() in ours
    for wrong, why in (
        ({"turn": {**line["turn"], "id": "no"}}, "line 1"),
        ({"turn": {**line["turn"], "kind": "other"}}, "kind"),
        ({"turn": {**line["turn"], "messages": [{"content": "x"}]}}, "role"),
        ({"session": {**line["session"], "id": str(world.long.id)}}, "another session"),
    ):
        status, problem = await imported(gateway, admin, json.dumps({**line, **wrong}).encode())
        assert (status, why in problem["detail"]) == (400, True), problem


@pytest.mark.sglang
async def test_a_table_says_what_the_lines_say(
    gateway: Gateway, world: Seeded, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in (await exported(gateway, ids="true")).splitlines()]
    path = tmp_path / "turns.parquet"
    path.write_bytes(await exported(gateway, format="parquet", ids="true"))
    process = await asyncio.create_subprocess_exec(
        engine_python(), "-c", READ, path, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    rows = json.loads(told)
    for name, of in (
        ("turn_id", lambda one: one["turn"]["id"]),
        ("session_id", lambda one: one["session"]["id"]),
        ("client", lambda one: one["session"]["client"]),
        ("parent_id", lambda one: one["turn"]["parent_id"]),
        ("score", lambda one: one["score"]),
        ("trainable", lambda one: one["turn"]["trainable"]),
        ("version_min", lambda one: one["turn"]["version_min"]),
        ("outcome", lambda one: one["verdict"] and one["verdict"]["outcome"]),
    ):
        assert [row[name] for row in rows] == [of(one) for one in lines], name
    assert [json.loads(row["reply"]) for row in rows] == [one["turn"]["reply"] for one in lines]
    packed = [10, 0, 0, 0, 11, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0]
    assert {tuple(row["sampled_ids"]) for row in rows} == {tuple(packed)}
    for row, one in zip(rows, lines, strict=True):
        assert row["created_at"] == pytest.approx(one["turn"]["created_at"], abs=1e-5)


async def test_a_page_of_an_export_is_bounded_by_bytes(
    gateway: Gateway, world: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns come one by one where each is as much as a page may have, and all of them come."""
    database = gateway.services.database
    (tenant,) = await gateway.rows("SELECT id FROM tenants WHERE name = 'one'")

    async def pages(*, ids: bool) -> list[list[UUID]]:
        return [
            [one["turn"]["id"] for one in page]
            async for page in exported_pages(database, tenant["id"], TurnFilters(), ids=ids)
        ]

    ours = sorted(one.id for one in (*world.turns, world.last))
    assert await pages(ids=True) == [ours]
    monkeypatch.setattr("gateway.store.turn_export._PAGE_BYTES", 1)
    assert await pages(ids=False) == [[one] for one in ours]
    # Ids count where they are asked for: a prompt of 4096 of them is 16 KiB.
    await database.execute(
        "UPDATE turns SET prompt_len = 4096, shared_len = 0, prompt_ids = $2 WHERE id = $1",
        ours[1],
        bytes(4 * 4096),
    )
    monkeypatch.setattr("gateway.store.turn_export._PAGE_BYTES", 16_384)
    assert await pages(ids=False) == [ours]
    assert await pages(ids=True) == [ours[:2], ours[2:]]
    lines = (await exported(gateway, ids="true")).splitlines()
    assert [json.loads(line)["turn"]["id"] for line in lines] == [str(one) for one in ours]
