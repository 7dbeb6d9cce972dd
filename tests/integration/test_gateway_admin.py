"""The admin API over a seeded database: what it says is what is there, of one tenant only."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from gateway.records import Role, new_id
from gateway.store.keys import KeyStore
from tests.fixtures_gateway import Gateway
from tests.seeded import SECRET, THEIRS, Seeded, seeded


@pytest.fixture
async def world(gateway: Gateway, database_url: str, tmp_path: Path) -> AsyncIterator[Seeded]:
    async with seeded(database_url, gateway.keys, tmp_path) as found:
        yield found


async def asked(
    gateway: Gateway, path: str, *, key: str | None = None, tag: str | None = None, **query: object
) -> tuple[int, dict[str, str], Any]:
    headers = {"authorization": f"Bearer {key or gateway.keys.admin}"}
    if tag is not None:
        headers["if-none-match"] = tag
    url, given = f"{gateway.url}/admin/v1/{path}", {name: str(one) for name, one in query.items()}
    async with aiohttp.ClientSession() as http, http.get(url, params=given, headers=headers) as got:
        body = await got.json(content_type=None) if got.status != 304 else await got.read()
        return got.status, {name.lower(): one for name, one in got.headers.items()}, body


async def read(gateway: Gateway, path: str, **query: object) -> Any:
    status, _, body = await asked(gateway, path, **query)
    assert status == 200, body
    return body


async def test_scores_by_version_have_means_and_intervals(gateway: Gateway, world: Seeded) -> None:
    found = await read(gateway, "scores", by="version")
    one, zero = found["items"]
    assert (one["key"], one["lineage"], one["n"], one["mean"]) == (1, "default", 2, 1.0)
    # No spread, no width.
    assert (one["low"], one["high"]) == (1.0, 1.0)
    assert (zero["key"], zero["n"], zero["mean"]) == (0, 3, 0.0)
    assert (zero["negative"], zero["neutral"], zero["positive"]) == (1, 1, 1)
    # 4.303 · 1 / √3 is wider than scores can be.
    assert (zero["low"], zero["high"]) == (-1.0, 1.0)


async def test_scores_by_each_key(gateway: Gateway, world: Seeded) -> None:
    clients = (await read(gateway, "scores", by="client"))["items"]
    assert [(one["key"], one["n"], one["mean"]) for one in clients] == [
        ("agent/1", 4, 0.25),
        ("agent/2", 1, 1.0),
    ]
    assert (clients[1]["low"], clients[1]["high"]) == (None, None)
    tools = (await read(gateway, "scores", by="tool"))["items"]
    # A reply that calls one tool twice counts once for it.
    assert [(one["key"], one["n"]) for one in tools] == [(None, 4), ("look", 1), ("turn", 1)]
    (tenant,) = (await read(gateway, "scores", by="tenant"))["items"]
    assert (tenant["key"], tenant["n"], tenant["mean"]) == ("one", 5, 0.4)
    of_one = await read(gateway, "scores", by="tenant", version=1, client="agent/1")
    assert [one["n"] for one in of_one["items"]] == [1]


async def test_scores_over_time(gateway: Gateway, world: Seeded) -> None:
    day = 86_400
    midnight = int(time.time()) // day * day
    found = (await read(gateway, "scores", by="time", bucket_s=day))["items"]
    assert sum(one["n"] for one in found) == 5
    assert {one["key"] for one in found} <= {midnight, midnight - day}
    later = await read(gateway, "scores", by="time", since=time.time() + 60)
    assert later["items"] == []
    earlier = await read(gateway, "scores", by="time", until=time.time() - 3600)
    assert earlier["items"] == []


async def test_a_turn_is_shown_to_its_end(gateway: Gateway, world: Seeded) -> None:
    root = world.turns[0]
    found = await read(gateway, f"turns/{root.id}", ids="true")
    assert (found["session_id"], found["prompt_ids"]) == (str(world.long.id), [1, 2, 3])
    assert found["sampled_ids"] == [10, 11, 12, 13]
    assert found["logprobs"] == [-0.5, -1.0, -0.25, -2.0]
    decode = gateway.services.tokenizer.decode
    assert found["tokens"] == [decode([one]) for one in (10, 11, 12, 13)]
    assert found["spans"] == [[0, 0, 4]]
    # The feedback has asked for another round.
    assert [one["state"] for one in found["judgements"]] == ["done", "queued"]
    assert found["feedback"][0]["text"] == SECRET
    assert found["verdict"]["outcome"] == "trained"
    assert found["verdict"]["step_id"] == str(world.step)
    assert found["reply"]["content"] == SECRET
    bare = await read(gateway, f"turns/{root.id}", content="false")
    assert SECRET not in str(bare)
    assert "sampled_ids" not in bare
    status, headers, body = await asked(gateway, f"turns/{root.id}", ids="true", content="false")
    assert (status, body["status"]) == (400, 400)
    assert headers["content-type"] == "application/problem+json"


async def test_how_far_samples_are_behind(gateway: Gateway, world: Seeded) -> None:
    found = await read(gateway, "staleness")
    assert (found["max_lag"], found["batch"]) == (4, 16)
    (lineage,) = found["items"]
    assert (lineage["lineage"], lineage["live_version"]) == ("default", 1)
    # Two samples of version 1 wait; those of the other tenant are not told of.
    assert lineage["waiting"] == [{"lag": 0, "samples": 2}]
    assert lineage["used"] == [{"lag": 0, "samples": 1}, {"lag": 2, "samples": 1}]


async def test_traffic_adds_up(gateway: Gateway, world: Seeded) -> None:
    found = await read(gateway, "traffic", bucket_s=60)
    assert sum(one["turns"] for one in found["items"]) == 6
    assert sum(one["main"] for one in found["items"]) == 5
    assert sum(one["completion_tokens"] for one in found["items"]) == 24
    assert {one["ms_p50"] for one in found["items"]} == {12.5}
    assert {one["first_token_ms_p95"] for one in found["items"]} == {None}
    status, _, body = await asked(gateway, "traffic", since=0, bucket_s=10)
    assert (status, "at most" in body["detail"]) == (400, True)


async def test_workers_and_events_are_told_without_what_is_others(
    gateway: Gateway, world: Seeded
) -> None:
    workers = {one["kind"]: one for one in (await read(gateway, "workers"))["items"]}
    assert set(workers) == {"gateway", "judge", "trainer"}
    assert workers["judge"]["report"]["alarms"] == ["disagreement"]
    # The lineage that no key of the tenant names is left out.
    assert workers["trainer"]["report"]["lineages"] == {"default": {"leads": True, "live": 1}}
    assert not {"host", "pid"} & workers["gateway"].keys()
    events = (await read(gateway, "events"))["items"]
    assert [(one["name"], one["detail"]["version"]) for one in events] == [("promoted", 1)]
    assert (await read(gateway, "events", name="retention"))["items"] == []


async def test_lists_come_in_pages(gateway: Gateway, world: Seeded) -> None:
    first = await read(gateway, "policies", limit=1)
    assert [one["version"] for one in first["items"]] == [1]
    second = await read(gateway, "policies", limit=1, cursor=first["next"])
    assert ([one["version"] for one in second["items"]], second["next"]) == ([0], None)
    for path in ("train-steps", "swaps"):
        page = await read(gateway, path, limit=1)
        assert (len(page["items"]), page["next"]) == (1, None)
    for path in ("policies", "train-steps", "swaps", "events", "sessions"):
        status, headers, body = await asked(gateway, path, cursor="elsewhere")
        assert (status, body["title"]) == (400, "Bad Request")
        assert headers["content-type"] == "application/problem+json"


async def test_events_come_in_pages(gateway: Gateway, world: Seeded) -> None:
    for number in range(5):
        await gateway.services.database.execute(
            "INSERT INTO events (name, tenant_id, detail) "
            "SELECT 'closed', id, jsonb_build_object('number', $1::int) FROM tenants "
            "WHERE name = 'one'",
            number,
        )
    found, cursor = [], None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page = await read(gateway, "events", name="closed", limit=2, **more)
        found += [one["detail"]["number"] for one in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert found == [4, 3, 2, 1, 0]


async def test_sessions_are_found_by_what_they_are(gateway: Gateway, world: Seeded) -> None:
    def ids(page: Any) -> list[UUID]:
        return [UUID(one["id"]) for one in page["items"]]

    assert ids(await read(gateway, "sessions", client="agent/1")) == [world.long.id]
    assert ids(await read(gateway, "sessions", name="chat-1")) == [world.long.id]
    assert ids(await read(gateway, "sessions", end_user="bob")) == []
    assert len(ids(await read(gateway, "sessions", status="open"))) == 2
    status, _, _ = await asked(gateway, "sessions", client="a\x00b")
    assert status == 400


async def test_what_has_not_changed_is_not_sent_again(gateway: Gateway, world: Seeded) -> None:
    status, headers, body = await asked(gateway, "policies")
    tag = headers["etag"]
    assert (status, len(body["items"])) == (200, 2)
    for given in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        status, again, nothing = await asked(gateway, "policies", tag=given)
        assert (status, again["etag"], nothing) == (304, tag, b"")
    await gateway.services.database.execute("UPDATE policies SET reason = 'x' WHERE version = 1")
    status, again, _ = await asked(gateway, "policies", tag=tag)
    assert (status, again["etag"] == tag) == (200, False)


READS = (
    "status", "sessions", "policies", "train-steps", "swaps", "events", "scores", "traffic",
    "staleness", "workers",
)  # fmt: skip


@pytest.mark.parametrize("path", READS)
async def test_reads_need_an_admin_key(gateway: Gateway, path: str) -> None:
    assert (await asked(gateway, path, key="sk-ns-nobody"))[0] == 401
    assert (await asked(gateway, path, key=gateway.keys.agent))[0] == 403


async def test_nothing_of_another_tenant_is_seen(gateway: Gateway, world: Seeded) -> None:
    seen = [await read(gateway, path) for path in READS]
    seen += [await read(gateway, "scores", by=by) for by in ("version", "client", "tool", "tenant")]
    said = str(seen)
    assert THEIRS not in said
    for theirs in (world.theirs.id, world.their_turn.id):
        assert str(theirs) not in said
    for path in (f"turns/{world.their_turn.id}", f"sessions/{world.theirs.id}"):
        assert (await asked(gateway, path))[0] == 404
    # And the other way round, by a tenant that uses no lineage of theirs.
    keys = KeyStore(gateway.services.database)
    tenant, lineage = await keys.ensure_tenant("third"), await keys.ensure_lineage("own", "tiny")
    _, admin = await keys.create(tenant, "admin", Role.ADMIN, lineage)
    for path in ("sessions", "train-steps", "swaps", "events"):
        assert (await asked(gateway, path, key=admin))[2]["items"] == []
    assert (await asked(gateway, "scores", key=admin))[2]["items"] == []
    status, _, body = await asked(gateway, "status", key=admin)
    assert (status, [one["name"] for one in body["lineages"]]) == (200, ["own"])
    assert (await asked(gateway, f"turns/{world.last.id}", key=admin))[0] == 404
    assert (await asked(gateway, f"turns/{new_id()}"))[0] == 404
