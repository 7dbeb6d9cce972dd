"""Requests of which nothing is kept: by their header, their key, or their tenant."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from gateway.api.opt_out import opted_out
from gateway.store.schema import Base
from tests.fixtures_gateway import Gateway

ASK = [{"role": "user", "content": "The quick brown fox?"}]


async def rows(gateway: Gateway) -> dict[str, int]:
    """How many rows each table has, but for those that count without a request."""
    counts: dict[str, int] = {}
    for table in {*Base.metadata.tables} - {"workers", "api_keys", "tenants", "lineages"}:
        (found,) = await gateway.rows(f"SELECT count(*) AS n FROM {table}")
        counts[table] = found["n"]
    return counts


async def ask(
    gateway: Gateway, messages: list[dict[str, Any]], *, stream: bool = False, **headers: str
) -> tuple[str | None, str]:
    """(what the reply says of being captured, the body)"""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    given["authorization"] = f"Bearer {gateway.keys.agent}"
    body = {"model": "tiny", "messages": messages, "stream": stream}
    async with (
        aiohttp.ClientSession(headers=given) as http,
        http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return answer.headers.get("x-nextstate-capture"), await answer.text()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_header_leaves_a_request_out(gateway: Gateway, stream: bool) -> None:
    """Nor does what it shows of an earlier turn's reply count as its next state."""
    gateway.says("dog")
    captured, _ = await ask(gateway, ASK)
    assert captured is None
    before = await rows(gateway)
    assert before["turns"] == 1
    trails = len(gateway.services.turns._recent)
    talk = [*ASK, {"role": "assistant", "content": "dog"}, {"role": "user", "content": "lazy"}]
    gateway.says("fox")
    captured, body = await ask(gateway, talk, stream=stream, x_nextstate_capture="off")
    assert captured == "off"
    assert "fox" in body
    assert await rows(gateway) == before
    assert len(gateway.services.turns._recent) == trails
    # The next request is asked for anew.
    gateway.says("jumps")
    captured, _ = await ask(gateway, talk, x_nextstate_capture="on")
    assert captured is None
    after = await rows(gateway)
    assert (after["turns"], after["next_states"]) == (2, 1)


async def test_a_tenant_may_be_left_out_altogether(gateway: Gateway) -> None:
    admin = {"authorization": f"Bearer {gateway.keys.admin}"}
    (tenant,) = await gateway.rows("SELECT id FROM tenants WHERE name = 'one'")
    url = f"{gateway.url}/admin/v1/tenants/{tenant['id']}/settings"
    for capture, expected in ((False, "off"), (None, None)):
        async with (
            aiohttp.ClientSession(headers=admin) as http,
            http.patch(url, json={"capture": capture}) as answer,
        ):
            assert answer.status == 200, await answer.text()
        # Keys are believed for some seconds.
        gateway.services.keys._valid.clear()
        gateway.says("dog")
        captured, _ = await ask(gateway, ASK)
        assert captured == expected
        assert (await rows(gateway))["turns"] == (expected is None)


@pytest.mark.parametrize(
    ("headers", "out"),
    [
        ({}, False),
        ({"x-nextstate-capture": "on"}, False),
        ({"x-nextstate-capture": " True "}, False),
        ({"x-nextstate-capture": "off"}, True),
        ({"x-nextstate-capture": "no"}, True),
        # Somebody wants something: rather too little is kept.
        ({"x-nextstate-capture": "please not"}, True),
        ({"x-nextstate-capture": ""}, True),
    ],
)
def test_what_is_no_plain_yes_is_a_no(headers: dict[str, str], out: bool) -> None:
    assert opted_out(headers) is out
