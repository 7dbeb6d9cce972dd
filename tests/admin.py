"""Requests to the admin API as operators make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import aiohttp

from gateway.records import Role
from gateway.store.keys import KeyStore
from tests.fixtures_gateway import Gateway


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is None where there is none."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def tag(self) -> str:
        return self.headers["etag"]


async def call(
    gateway: Gateway,
    method: str,
    path: str,
    json: object = None,
    *,
    key: str | None = None,
    tag: str | None = None,
    **query: object,
) -> Answer:
    """Ask with an admin key, by default that of tenant `one`; `tag` is sent as If-Match."""
    headers = {"authorization": f"Bearer {key or gateway.keys.admin}"}
    if tag is not None:
        headers["if-match"] = tag
    url, given = f"{gateway.url}/admin/v1/{path}", {name: str(one) for name, one in query.items()}
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, url, params=given, headers=headers, json=json) as got,
    ):
        body = await got.json(content_type=None) if got.content_length != 0 else None
        return Answer(got.status, {name.lower(): one for name, one in got.headers.items()}, body)


async def done(gateway: Gateway, method: str, path: str, json: object = None, **more: Any) -> Any:
    """What is answered to a request that succeeds."""
    found = await call(gateway, method, path, json, **more)
    assert found.status in (200, 201), (found.status, found.body)
    return found.body


async def admin_of(gateway: Gateway, tenant: str, lineage: UUID | None = None) -> str:
    """The secret of a new admin key of a tenant, which is made where there is none."""
    keys = KeyStore(gateway.services.database)
    tenant_id = await keys.ensure_tenant(tenant)
    lineage_id = gateway.keys.lineage_id if lineage is None else lineage
    return (await keys.create(tenant_id, "admin", Role.ADMIN, lineage_id))[1]
