"""Changes that are sent again: with an `Idempotency-Key` they are made once, with a tag as seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config import ServerSettings
from tests.admin import Answer, admin_of, call, done
from tests.fixtures_engine import free_port
from tests.fixtures_gateway import Gateway, fake_gateway
from tests.seeded import seeded


@pytest.fixture
async def operated(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose operators are tenant `one`."""
    server = ServerSettings(port=free_port(), operators="one")
    async with fake_gateway(database_url, tiny_model, tmp_path, gateway=server) as running:
        yield running


async def sent(
    gateway: Gateway, path: str, body: object, mark: str, key: str | None = None
) -> Answer:
    headers = {
        "authorization": f"Bearer {key or gateway.keys.admin}",
        "idempotency-key": mark,
    }
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{gateway.url}/admin/v1/{path}", json=body, headers=headers) as got,
    ):
        found = await got.json(content_type=None)
        return Answer(got.status, {name.lower(): one for name, one in got.headers.items()}, found)


async def actions(gateway: Gateway) -> list[str]:
    return [one["action"] for one in (await done(gateway, "GET", "audit"))["items"]]


async def test_a_key_is_made_once_and_its_secret_shown_once(gateway: Gateway) -> None:
    body = {"name": "robot", "limits": {"requests_per_minute": 60}}
    first, again = [await sent(gateway, "keys", body, "a") for _ in range(2)]
    assert (first.status, again.status) == (201, 200)
    secret = first.body.pop("secret")
    assert again.body == first.body
    assert again.tag == first.tag
    assert len((await done(gateway, "GET", "keys", name="robot"))["items"]) == 1
    assert secret not in str(await done(gateway, "GET", "audit"))

    other = await sent(gateway, "keys", {**body, "name": "another"}, "a")
    assert (other.status, other.body["code"]) == (409, "idempotency_key_used")
    elsewhere = await sent(gateway, f"keys/{first.body['id']}/rotate", body, "a")
    assert elsewhere.status == 400
    path = f"keys/{first.body['id']}/rotate"
    assert (await sent(gateway, path, {"grace_s": 60}, "a")).status == 409
    # Another name makes another key, and so does the same name of another tenant.
    assert (await sent(gateway, "keys", body, "b")).status == 201
    theirs = await admin_of(gateway, "other")
    assert (await sent(gateway, "keys", body, "a", key=theirs)).status == 201

    new, same = [await sent(gateway, path, {"grace_s": 60}, "c") for _ in range(2)]
    assert (new.status, same.status) == (201, 200)
    del new.body["secret"]
    assert same.body == new.body
    assert new.body["id"] != first.body["id"]
    assert sorted(await actions(gateway)) == ["key_created", "key_created", "key_rotated"]


async def test_many_at_once_make_one(gateway: Gateway) -> None:
    found = await asyncio.gather(
        *(sent(gateway, "keys", {"name": "robot"}, "same") for _ in range(8))
    )
    assert sorted(one.status for one in found) == [200] * 7 + [201]
    assert len({one.body["id"] for one in found}) == 1


async def test_a_name_is_free_again_after_a_day(gateway: Gateway) -> None:
    first = await sent(gateway, "keys", {"name": "robot"}, "a")
    # Ids of entries begin with their milliseconds.
    await gateway.services.database.execute(
        "UPDATE audit_entries SET id = ('0000' || substr(id::text, 5))::uuid"
    )
    later = await sent(gateway, "keys", {"name": "robot"}, "a")
    assert (later.status, later.body["id"] == first.body["id"]) == (201, False)


async def test_a_tenant_is_made_once(operated: Gateway) -> None:
    first, again = [await sent(operated, "tenants", {"name": "acme"}, "t") for _ in range(2)]
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert (await sent(operated, "tenants", {"name": "acme"}, "u")).status == 409


async def test_turns_are_judged_again_once(
    gateway: Gateway, database_url: str, tmp_path: Path
) -> None:
    async with seeded(database_url, gateway.keys, tmp_path) as world:
        body: dict[str, Any] = {"session_id": str(world.long.id)}

        async def queued() -> int:
            rows = await gateway.rows("SELECT count(*) AS n FROM judgements WHERE state = 'queued'")
            count: int = rows[0]["n"]
            return count

        # The feedback on one of them waits to be judged.
        await gateway.services.database.execute("UPDATE judgements SET state = 'done'")
        first = await sent(gateway, "rejudge", body, "r")
        assert first.body == {"found": 4, "queued": 4, "more": False}
        await gateway.services.database.execute("UPDATE judgements SET state = 'done'")
        again = await sent(gateway, "rejudge", body, "r")
        assert (again.status, again.body) == (200, first.body)
        assert await queued() == 0
        assert (await sent(gateway, "rejudge", body, "s")).body["queued"] == 4
        # One that found nothing to do is remembered as well.
        path = f"turns/{world.turns[4].id}/rejudge"
        nothing = {"found": 0, "queued": 0, "more": False}
        for _ in range(2):
            assert (await sent(gateway, path, None, "side")).body == nothing
        assert (await actions(gateway)).count("turns_rejudged") == 3


async def test_a_session_is_erased_as_it_was_seen(
    gateway: Gateway, database_url: str, tmp_path: Path
) -> None:
    async with seeded(database_url, gateway.keys, tmp_path) as world:
        path = f"sessions/{world.short.id}"
        seen = (await call(gateway, "GET", path)).tag
        await done(gateway, "POST", f"{path}/close")
        stale = await call(gateway, "DELETE", path, tag=seen)
        assert (stale.status, stale.body["code"]) == (412, "precondition_failed")
        now = (await call(gateway, "GET", path)).tag
        assert (await call(gateway, "DELETE", path, tag=now)).status == 200
        assert (await call(gateway, "GET", path)).status == 404
        assert (await call(gateway, "DELETE", path, tag=now)).status == 404


async def test_the_turns_of_a_session_come_in_pages(
    gateway: Gateway, database_url: str, tmp_path: Path
) -> None:
    async with seeded(database_url, gateway.keys, tmp_path) as world:
        path = f"sessions/{world.long.id}"
        whole = await done(gateway, "GET", path)
        assert [one["id"] for one in whole["items"]] == sorted(str(one.id) for one in world.turns)
        assert whole["next"] is None
        items, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            more = {} if cursor is None else {"cursor": cursor}
            page = await done(gateway, "GET", path, limit=2, **more)
            assert (page["turns"], page["id"]) == (5, whole["id"])
            items += page["items"]
            cursor, pages = page["next"], pages + 1
        assert (items, pages) == (whole["items"], 3)
        for wrong in ({"limit": 1001}, {"limit": 0}, {"cursor": "x"}):
            assert (await call(gateway, "GET", path, **wrong)).status == 400
