"""Keys and tenants over the admin API: what is made works, what ends is refused, walls hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config import ServerSettings
from gateway.store.keys import KeyStore
from tests.admin import Answer, admin_of, call, done
from tests.fixtures_engine import free_port
from tests.fixtures_gateway import Gateway, fake_gateway


@pytest.fixture
async def operated(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose operators are tenant `one`."""
    server = ServerSettings(port=free_port(), operators="one")
    async with fake_gateway(database_url, tiny_model, tmp_path, gateway=server) as running:
        stop_the_clock(running)
        yield running


def stop_the_clock(gateway: Gateway) -> None:
    """Let no bucket fill, however long requests take."""
    gateway.services.limiter._clock = lambda: 0.0


async def taken(gateway: Gateway, secret: str) -> tuple[int, str | None]:
    """Whether a key is taken, and the code of the refusal."""
    headers = {"authorization": f"Bearer {secret}"}
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{gateway.url}/v1/models", headers=headers) as got,
    ):
        body = await got.json()
        return got.status, body.get("error", {}).get("code")


async def chat(gateway: Gateway, secret: str) -> Answer:
    headers = {"authorization": f"Bearer {secret}"}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers) as got,
    ):
        return Answer(got.status, dict(got.headers), await got.json())


async def audited(gateway: Gateway, **query: Any) -> list[tuple[str, str]]:
    found = await done(gateway, "GET", "audit", **query)
    return [(one["action"], one["subject"]["target"]) for one in found["items"]]


async def test_a_key_lives_and_ends(gateway: Gateway) -> None:
    made = await call(gateway, "POST", "keys", {"name": "robot", "limits": {}})
    assert made.status == 201
    secret, key = made.body["secret"], made.body["id"]
    path = f"keys/{key}"
    assert made.headers["location"] == f"/admin/v1/{path}"
    assert await taken(gateway, secret) == (200, None)
    shown = await call(gateway, "GET", path)
    # What was made, but for the secret; and its tag is that of the key as it is read.
    assert {**shown.body, "secret": secret} == made.body
    assert shown.tag == made.tag
    assert (shown.body["role"], shown.body["on_stale"], shown.body["state"]) == (
        "agent", "serve", "valid",
    )  # fmt: skip
    assert secret not in str(await done(gateway, "GET", "keys"))

    new = await done(gateway, "POST", f"{path}/rotate", {"grace_s": 3600})
    assert {new["name"], new["role"]} == {"robot", "agent"}
    assert (await taken(gateway, secret), await taken(gateway, new["secret"])) == (
        (200, None), (200, None),
    )  # fmt: skip
    await done(gateway, "POST", f"{path}/rotate", {"grace_s": 0})
    assert await taken(gateway, secret) == (401, "expired_api_key")
    # What has ended is not rotated, and no grace gives it another hour.
    assert (await call(gateway, "POST", f"{path}/rotate")).status == 409
    assert (await done(gateway, "GET", path))["state"] == "expired"

    for _ in range(2):
        revoked = await done(gateway, "POST", f"keys/{new['id']}/revoke")
        assert revoked["state"] == "revoked"
    assert await taken(gateway, new["secret"]) == (401, "invalid_api_key")
    assert (await call(gateway, "PATCH", f"keys/{new['id']}", {"name": "x"})).status == 409
    robots = await done(gateway, "GET", "keys", name="robot", state="valid")
    assert len(robots["items"]) == 1
    assert await audited(gateway) == [
        ("key_revoked", new["id"]),
        ("key_rotated", key),
        ("key_rotated", key),
        ("key_created", key),
    ]


async def test_a_change_holds_at_once_and_only_to_what_was_seen(gateway: Gateway) -> None:
    made = await done(gateway, "POST", "keys", {"name": "robot"})
    path, secret = f"keys/{made['id']}", made["secret"]
    before = (await call(gateway, "GET", path)).tag
    stop_the_clock(gateway)
    gateway.says("Hello")
    assert (await chat(gateway, secret)).status == 200
    changed = await call(
        gateway, "PATCH", path, {"capture": False, "limits": {"requests_per_minute": 2}}, tag=before
    )
    assert (changed.status, changed.body["capture"]) == (200, False)
    assert changed.body["limits"] == {"requests_per_minute": 2}
    gateway.says("Hello")
    served = await chat(gateway, secret)
    assert (served.status, served.headers["x-nextstate-capture"]) == (200, "off")
    assert served.headers["x-ratelimit-limit-requests"] == "2"
    gateway.says("Hello")
    assert [(await chat(gateway, secret)).status for _ in range(2)] == [200, 429]
    stale = await call(gateway, "PATCH", path, {"name": "other"}, tag=before)
    assert (stale.status, stale.body["code"]) == (412, "precondition_failed")
    assert (await done(gateway, "GET", path))["name"] == "robot"
    open_again = await done(gateway, "PATCH", path, {"limits": None}, tag=changed.tag)
    assert (open_again["limits"], open_again["capture"]) == (None, False)
    wrong: tuple[dict[str, object], ...] = (
        {"name": None}, {"capture": 1}, {"role": "admin"}, {"limits": {"requests_per_minute": 0}},
        {"on_stale": "wait"}, {"expires_at": -1}, {"name": "a\x00"}, {"name": ""},
    )  # fmt: skip
    for body in wrong:
        assert (await call(gateway, "PATCH", path, body)).status == 400, body


async def test_keys_of_others_are_out_of_reach(gateway: Gateway) -> None:
    store = KeyStore(gateway.services.database)
    lineage = await store.ensure_lineage("theirs", "tiny")
    theirs = await admin_of(gateway, "other", lineage)
    key = (await done(gateway, "POST", "keys", {"name": "mine"}))["id"]
    tenant = (await done(gateway, "GET", "tenants"))["items"][0]["id"]
    for method, path, body in (
        ("GET", f"keys/{key}", None),
        ("PATCH", f"keys/{key}", {"name": "x"}),
        ("POST", f"keys/{key}/rotate", {}),
        ("POST", f"keys/{key}/revoke", None),
    ):
        assert (await call(gateway, method, path, body, key=theirs)).status == 404
        assert (await call(gateway, method, path, body, key=theirs, tenant_id=tenant)).status == 404
    listed = await done(gateway, "GET", "keys", key=theirs)
    assert {one["tenant"] for one in listed["items"]} == {"other"}
    # A lineage that the tenant does not use is not given out: who has it may move it.
    asked = await call(gateway, "POST", "keys", {"name": "x", "lineage": "theirs"})
    assert asked.status == 404
    body = {"name": "x", "tenant_id": tenant}
    assert (await call(gateway, "POST", "keys", body, key=theirs)).status == 404


async def test_operators_make_tenants_and_their_first_keys(operated: Gateway) -> None:
    made = await done(operated, "POST", "tenants", {"name": "acme"})
    assert (made["name"], made["settings"], made["valid_keys"]) == ("acme", {}, 0)
    assert (await call(operated, "POST", "tenants", {"name": "acme"})).status == 409
    first = await done(
        operated, "POST", "keys", {"name": "first", "role": "admin", "tenant_id": made["id"]}
    )
    acme = first["secret"]
    names = [one["name"] for one in (await done(operated, "GET", "tenants"))["items"]]
    assert names[0] == "acme"
    assert {*names} == {"acme", "one", "other"}
    own = (await done(operated, "GET", "tenants", key=acme))["items"]
    assert [(one["id"], one["valid_keys"]) for one in own] == [(made["id"], 1)]
    assert (await call(operated, "POST", "tenants", {"name": "x"}, key=acme)).status == 403
    one = next(t for t in (await done(operated, "GET", "tenants"))["items"] if t["name"] == "one")
    assert (await call(operated, "GET", f"tenants/{one['id']}", key=acme)).status == 404
    # An operator sees that the keys are there, and no session of theirs.
    assert await audited(operated, key=acme) == [("key_created", first["id"])]
    assert (await done(operated, "GET", "keys", tenant_id=made["id"]))["items"][0]["id"]
    assert ("tenant_created", "acme") in await audited(operated)


async def test_settings_of_a_tenant_are_set_section_by_section(operated: Gateway) -> None:
    tenants = (await done(operated, "GET", "tenants", name="one"))["items"]
    path = f"tenants/{tenants[0]['id']}"
    before = (await call(operated, "GET", path)).tag
    found = await done(
        operated, "PATCH", f"{path}/settings", {"labels": {"plan": "gold"}}, tag=before
    )
    assert found["settings"] == {"labels": {"plan": "gold"}}
    stale = await call(operated, "PATCH", f"{path}/settings", {"labels": {}}, tag=before)
    assert stale.status == 412
    assert (await done(operated, "PATCH", f"{path}/settings", {}))["settings"] == found["settings"]
    gone = await done(operated, "PATCH", f"{path}/settings", {"labels": None})
    assert gone["settings"] == {}
    refused = await call(operated, "PATCH", f"{path}/settings", {"operator": True})
    assert refused.status == 400
    big = {"labels": {str(number): "x" * 400 for number in range(1400)}}
    assert (await call(operated, "PATCH", f"{path}/settings", big)).status == 413


async def test_a_body_that_is_too_large_is_a_problem_on_each_route(operated: Gateway) -> None:
    for path in ("keys", "rejudge", "erasures"):
        refused = await call(operated, "POST", path, {"name": "x" * 600_000})
        assert (refused.status, refused.body["status"]) == (413, 413), path
        assert refused.headers["content-type"] == "application/problem+json"


async def test_what_a_tenant_may_use_is_set_by_operators_alone(operated: Gateway) -> None:
    (tenant,) = (await done(operated, "GET", "tenants", name="other"))["items"]
    settings = f"tenants/{tenant['id']}/settings"
    theirs = await admin_of(operated, "other")
    limits = {"requests_per_minute": 2}
    found = await done(operated, "PATCH", settings, {"limits": limits})
    assert found["settings"] == {"limits": limits}
    for given in (None, {}, {"requests_per_minute": 9}):
        refused = await call(operated, "PATCH", settings, {"limits": given}, key=theirs)
        assert (refused.status, refused.body["code"]) == (403, "permission_denied")
    # What is its own it sets as before, and sees what it may use.
    seen = await done(operated, "PATCH", settings, {"labels": {"plan": "gold"}}, key=theirs)
    assert seen["settings"] == {"limits": limits, "labels": {"plan": "gold"}}

    # However many keys it makes, and whatever they say, they share it.
    keys = [
        await done(
            operated, "POST", "keys", {"name": name, "limits": {"requests_per_minute": 1000}},
            key=theirs,
        )
        for name in ("a", "b", "c")
    ]  # fmt: skip
    for _ in range(2):
        operated.says("Hello")
    answers = [await chat(operated, one["secret"]) for one in keys]
    assert [one.status for one in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
    assert "This tenant may use 2 requests a minute" in answers[2].body["error"]["message"]
    operated.says("Hello")
    assert (await chat(operated, operated.keys.agent)).status == 200
