"""The admin API under made-up requests: answers as documented, and walls between two tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.reference import reference
from gateway.config import ServerSettings
from tests.admin import done
from tests.fixtures_engine import free_port
from tests.fixtures_gateway import Gateway, fake_gateway
from tests.fuzz.document import tried
from tests.fuzz.sides import sides
from tests.fuzz.tenants import wander
from tests.seeded import Seeded, seeded

API = Path(__file__).parents[2] / "docs" / "api.md"
#: Of each kind one: lists with filters, one thing, changes of each method, actions, streams.
PATHS = (
    "/admin/v1/sessions", "/admin/v1/turns/{turn_id}", "/admin/v1/keys", "/admin/v1/keys/{key_id}",
    "/admin/v1/keys/{key_id}/rotate", "/admin/v1/rejudge", "/admin/v1/rules", "/admin/v1/export",
    "/admin/v1/{what}/pause", "/admin/v1/tenants/{tenant_id}/settings",
)  # fmt: skip


@pytest.fixture
async def operated(database_url: str, tiny_model: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose operators are tenant `one`."""
    server = ServerSettings(port=free_port(), operators="one")
    async with fake_gateway(database_url, tiny_model, tmp_path, gateway=server) as running:
        yield running


@pytest.fixture
async def world(gateway: Gateway, database_url: str, tmp_path: Path) -> AsyncIterator[Seeded]:
    async with seeded(database_url, gateway.keys, tmp_path) as found:
        yield found


async def document(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = await done(gateway, "GET", "openapi.json")
    return found


async def test_the_reference_is_that_of_the_document(gateway: Gateway) -> None:
    assert API.read_text() == reference(await document(gateway)), (
        "write docs/api.md anew: see the head of gateway/cli/reference.py"
    )


async def test_answers_are_as_documented(operated: Gateway) -> None:
    told = await document(operated)
    assert {*PATHS} <= {*told["paths"]}
    key = operated.keys.admin
    statuses = await asyncio.to_thread(tried, operated.url, told, key, PATHS, 4)
    assert sum(statuses.values()) >= 100
    assert max(statuses) < 500, statuses
    assert {200, 201, 400, 404} <= {*statuses}


async def test_two_tenants_stay_apart(gateway: Gateway, world: Seeded) -> None:
    pair = await sides(gateway, world)
    await asyncio.to_thread(wander, gateway.url, pair, 3, 25)
    assert min(side.asked for side in pair) > 10
