"""The rules of classification over the admin API: read, tried, changed, and in force at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ServerSettings
from tests.admin import admin_of, call, done
from tests.fixtures_engine import free_port
from tests.fixtures_gateway import Gateway, fake_gateway

TITLES = {"auxiliary_patterns": ["^titler/"]}


@pytest.fixture
async def operated(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose operators are tenant `one`."""
    server = ServerSettings(port=free_port(), operators="one")
    async with fake_gateway(database_url, tiny_model, tmp_path, gateway=server) as running:
        yield running


def sample(**more: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Name this chat."}]}
    return {"body": body, "headers": {"User-Agent": "titler/1.0"}, **more}


async def test_rules_are_tried_then_put_in_force(operated: Gateway) -> None:
    before = await call(operated, "GET", "rules")
    assert before.body["version"] == 0
    assert before.body["in_force"] == {
        "session_timeout_s": 3600.0, "trainable_patterns": [], "auxiliary_patterns": [],
    }  # fmt: skip
    found = await done(operated, "POST", "rules/test", sample())
    assert (found["kind"], found["kind_rule"], found["resolve_rule"]) == (
        "unknown", "first_turn", "new",
    )  # fmt: skip
    tried = await done(operated, "POST", "rules/test", sample(rules=TITLES))
    assert (tried["kind"], tried["kind_rule"]) == ("side", "auxiliary_pattern")
    # Tried is not changed.
    assert (await done(operated, "GET", "rules")) == before.body

    put = await call(operated, "PUT", "rules", TITLES, tag=before.tag)
    assert (put.status, put.body["version"]) == (200, 1)
    assert put.body["in_force"]["auxiliary_patterns"] == ["^titler/"]
    async with asyncio.timeout(120):
        while (await done(operated, "POST", "rules/test", sample()))["kind"] != "side":
            await asyncio.sleep(0.02)
    stale = await call(operated, "PUT", "rules", {}, tag=before.tag)
    assert stale.status == 412
    wrong = await call(operated, "PUT", "rules", {"trainable_patterns": ["("]})
    assert (wrong.status, "regular expression" in wrong.body["detail"]) == (400, True)
    assert (await done(operated, "GET", "rules")) == put.body
    undone = await done(operated, "PUT", "rules", {}, tag=put.tag)
    assert (undone["version"], undone["in_force"]) == (2, before.body["in_force"])
    actions = [one["action"] for one in (await done(operated, "GET", "audit"))["items"]]
    assert actions == ["rules_changed", "rules_changed"]


async def test_a_request_is_placed_as_it_would_be(operated: Gateway) -> None:
    said = [{"role": "user", "content": "Hello"}]
    operated.says("Good day.")
    async with operated.client() as client:
        served = await client.chat.completions.with_raw_response.create(model="tiny", messages=said)
    reply = served.parse().choices[0].message.content
    turn, session = (served.headers[f"x-nextstate-{name}-id"] for name in ("turn", "session"))
    went_on = [
        *said, {"role": "assistant", "content": reply}, {"role": "user", "content": "And now?"},
    ]  # fmt: skip
    (key,) = await operated.rows(
        "SELECT id FROM api_keys WHERE name = 'agent' AND tenant_id = "
        "(SELECT id FROM tenants WHERE name = 'one')"
    )
    asked = {"body": {"model": "tiny", "messages": went_on}, "key_id": str(key["id"])}
    found = await done(operated, "POST", "rules/test", asked)
    assert (found["kind"], found["kind_rule"]) == ("main", "extends_chain")
    assert (found["parent_id"], found["session_id"]) == (turn, session)
    assert await operated.rows("SELECT count(*) FROM turns") == [{"count": 1}]
    theirs = await admin_of(operated, "other")
    assert (await call(operated, "POST", "rules/test", asked, key=theirs)).status == 404
    assert (await call(operated, "PUT", "rules", {}, key=theirs)).status == 403
    assert (await call(operated, "POST", "rules/test", sample(), key=theirs)).status == 200
    slow = sample(rules={"auxiliary_patterns": ["last_user:(a+)+$"]})
    assert (await call(operated, "POST", "rules/test", slow, key=theirs)).status == 403
    for dialect, body in (
        ("messages", {"model": "tiny", "messages": said, "max_tokens": 5}),
        ("responses", {"model": "tiny", "input": "Hello"}),
        ("completions", {"model": "tiny", "prompt": "Hello"}),
    ):
        found = await done(operated, "POST", "rules/test", {"dialect": dialect, "body": body})
        assert found["parent_id"] is None
