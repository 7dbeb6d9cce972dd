"""A lineage that several tenants use: none of them moves it, and who used it once sees nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ServerSettings
from gateway.records import Role
from gateway.store.keys import KeyStore
from gateway.store.policies import PolicyStore
from tests.admin import admin_of, call, done
from tests.fixtures_engine import free_port
from tests.fixtures_gateway import Gateway, fake_gateway
from tests.planted import lead, plant

MOVES = (
    "policies/1/pin", "policies/1/unpin", "policies/1/promote", "policies/1/rollback",
    "training/pause", "training/resume",
)  # fmt: skip


@pytest.fixture
async def hosted(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway of tenants `one` and `other` over one lineage at version 1; `host` operates it."""
    server = ServerSettings(port=free_port(), operators="host")
    async with fake_gateway(database_url, tiny_model, tmp_path, gateway=server) as running:
        database, lineage = running.services.database, running.keys.lineage_id
        leadership = await lead(database, lineage)
        version = await plant(database, lineage, leadership.epoch, tmp_path)
        await PolicyStore(database).promote(lineage, leadership.epoch, version)
        await leadership.release()
        yield running


async def standing(gateway: Gateway) -> list[dict[str, Any]]:
    return await gateway.rows(
        "SELECT live_version, pinned_version, epoch, (SELECT value FROM settings"
        " WHERE name = 'pauses') AS pauses FROM lineages WHERE id = $1",
        gateway.keys.lineage_id,
    )


async def test_what_several_use_is_moved_by_operators_alone(hosted: Gateway) -> None:
    before = await standing(hosted)
    for key in (hosted.keys.admin, await admin_of(hosted, "other")):
        for path in MOVES:
            refused = await call(hosted, "POST", path, key=key)
            assert (refused.status, refused.body["code"]) == (403, "permission_denied"), path
    assert await standing(hosted) == before
    assert (await done(hosted, "GET", "audit"))["items"] == []

    # An operator moves it though no key of the host's names it.
    own = await KeyStore(hosted.services.database).ensure_lineage("host's", "tiny")
    host = await admin_of(hosted, "host", own)
    assert (await done(hosted, "POST", "policies/1/pin", key=host))["pinned_version"] == 1
    assert (await done(hosted, "POST", "policies/1/unpin", key=host))["changed"] is True
    await done(hosted, "POST", "training/pause", key=host, reason="upgrade")
    (told,) = (await done(hosted, "GET", "pauses"))["items"]
    assert (told["what"], told["subject_id"]) == ("training", str(hosted.keys.lineage_id))
    # Why and by whom is the host's own affair.
    assert (told["reason"], told["by"]) == (None, None)
    await done(hosted, "POST", "training/resume", key=host)
    assert (await done(hosted, "POST", "policies/1/rollback", key=host))["live_version"] == 0
    assert (await call(hosted, "POST", "policies/1/pin", key=host, lineage="none")).status == 404


async def test_keys_that_have_ended_use_nothing(hosted: Gateway) -> None:
    store = KeyStore(hosted.services.database)
    own = await store.ensure_lineage("theirs", "tiny")
    theirs = await admin_of(hosted, "other", own)
    other = await store.ensure_tenant("other")
    await store.create(
        other, "late", Role.AGENT, hosted.keys.lineage_id, expires_at=time.time() - 1
    )
    keys = (await done(hosted, "GET", "keys", key=theirs, state="valid"))["items"]
    (agent,) = [one["id"] for one in keys if one["lineage"] == "default"]

    assert (await call(hosted, "POST", "policies/1/pin")).status == 403
    await done(hosted, "POST", f"keys/{agent}/revoke", key=theirs)
    # One of the other's keys for it is revoked, the other has expired: it is `one`'s alone.
    assert (await done(hosted, "POST", "policies/1/pin"))["pinned_version"] == 1
    assert (await done(hosted, "POST", "policies/1/unpin"))["changed"] is True
    await done(hosted, "POST", "training/pause")

    assert (await call(hosted, "POST", "policies/1/pin", key=theirs)).status == 404
    assert (await call(hosted, "POST", "training/resume", key=theirs)).status == 404
    asked = await call(hosted, "POST", "keys", {"name": "x", "lineage": "default"}, key=theirs)
    assert asked.status == 404
    seen = await done(hosted, "GET", "status", key=theirs)
    assert [one["name"] for one in seen["lineages"]] == ["theirs"]
    assert seen["paused"] == []
    for path in ("policies", "staleness"):
        items = (await done(hosted, "GET", path, key=theirs))["items"]
        assert {one["lineage"] for one in items} == {"theirs"}, path
    events = (await done(hosted, "GET", "events", key=theirs))["items"]
    assert [one["name"] for one in events] == []
    assert {one["name"] for one in (await done(hosted, "GET", "events"))["items"]} >= {
        "pinned", "unpinned",
    }  # fmt: skip
