"""Keys: resolved by digest, refused when revoked or expired, remembered while Postgres is away."""

from __future__ import annotations

import asyncio
import re
import time

import asyncpg
import pytest

from gateway.errors import AuthenticationError, ConfigError, StoreError, StoreUnavailable
from gateway.records import Role
from gateway.store.database import Database
from gateway.store.keys import KeyStore


async def owner(keys: KeyStore):
    return await keys.ensure_tenant("acme"), await keys.ensure_lineage("default", "tiny")


async def test_a_key_resolves_to_who_holds_it(database: Database):
    keys = KeyStore(database)
    tenant, lineage = await owner(keys)
    key_id, secret = await keys.create(
        tenant, "ci", Role.ROLLOUT, lineage, capture=False, sampling={"temperature": 0.7}
    )
    assert re.fullmatch(r"sk-ns-[A-Za-z0-9_-]{43}", secret)
    found = await keys.principal(secret)
    assert (found.key_id, found.tenant_id, found.lineage_id) == (key_id, tenant, lineage)
    assert (found.tenant, found.name, found.role) == ("acme", "ci", Role.ROLLOUT)
    assert (found.capture, found.on_stale, found.sampling) == (
        False,
        "reject",
        {"temperature": 0.7},
    )
    _, other = await keys.create(tenant, "app", Role.AGENT, lineage)
    assert (await keys.principal(other)).on_stale == "serve"


async def test_the_secret_is_nowhere_in_the_database(database: Database):
    keys = KeyStore(database)
    tenant, lineage = await owner(keys)
    _, secret = await keys.create(tenant, "ci", Role.AGENT, lineage)
    row = await database.fetchrow("SELECT api_keys::text AS whole, hint FROM api_keys")
    assert row is not None
    assert secret not in row["whole"]
    assert secret[10:] not in row["whole"]
    assert row["hint"] == secret[:10]


@pytest.mark.parametrize("secret", ["", "sk-ns-wrong", "né\ud800", "x" * 10_000])
async def test_an_unknown_key_is_refused(database: Database, secret: str):
    with pytest.raises(AuthenticationError):
        await KeyStore(database).principal(secret)


async def test_a_revoked_key_is_refused_at_once_here_and_soon_elsewhere(database: Database):
    keys, elsewhere = KeyStore(database), KeyStore(database, ttl_s=0.05)
    tenant, lineage = await owner(keys)
    key_id, secret = await keys.create(tenant, "ci", Role.AGENT, lineage)
    await keys.principal(secret)
    await elsewhere.principal(secret)
    assert await keys.revoke(key_id)
    assert not await keys.revoke(key_id)
    with pytest.raises(AuthenticationError):
        await keys.principal(secret)
    await asyncio.sleep(0.06)
    with pytest.raises(AuthenticationError):
        await elsewhere.principal(secret)


async def test_an_expired_key_is_refused_though_it_is_remembered(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    keys = KeyStore(database, ttl_s=3600)
    tenant, lineage = await owner(keys)
    expires = time.time() + 1000
    _, secret = await keys.create(tenant, "ci", Role.AGENT, lineage, expires_at=expires)
    await keys.principal(secret)
    monkeypatch.setattr(time, "time", lambda: expires + 1)
    with pytest.raises(AuthenticationError, match="expired"):
        await keys.principal(secret)


async def test_a_key_just_made_works_where_it_was_refused_before(database: Database):
    keys = KeyStore(database, ttl_s=3600)
    tenant, lineage = await owner(keys)
    with pytest.raises(AuthenticationError):
        await keys.principal("sk-own-secret-of-the-operator")
    await keys.create(tenant, "ci", Role.AGENT, lineage, secret="sk-own-secret-of-the-operator")
    assert (await keys.principal("sk-own-secret-of-the-operator")).name == "ci"


async def test_guesses_are_bounded_and_push_out_no_valid_key(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.store.keys._MOST_CACHED", 5)
    keys = KeyStore(database, ttl_s=3600)
    tenant, lineage = await owner(keys)
    _, secret = await keys.create(tenant, "ci", Role.AGENT, lineage)
    await keys.principal(secret)
    for number in range(10):
        with pytest.raises(AuthenticationError):
            await keys.principal(f"guess {number}")
    assert len(keys._refused) == 5
    await database.execute("DELETE FROM api_keys")
    assert (await keys.principal(secret)).name == "ci"


async def test_many_who_wait_ask_once(database: Database):
    keys = KeyStore(database)
    tenant, lineage = await owner(keys)
    _, secret = await keys.create(tenant, "ci", Role.AGENT, lineage)
    asked = 0
    fetchrow = database.fetchrow

    async def counting(*values, **options):
        nonlocal asked
        asked += 1
        return await fetchrow(*values, **options)

    database.fetchrow = counting
    found = await asyncio.gather(*(keys.principal(secret) for _ in range(50)))
    assert len(found) == 50
    assert asked == 1


async def test_a_key_goes_on_working_while_postgres_is_away(database: Database):
    keys = KeyStore(database, ttl_s=0)
    tenant, lineage = await owner(keys)
    _, secret = await keys.create(tenant, "ci", Role.AGENT, lineage)
    before = await keys.principal(secret)
    await database.pool.close()
    assert await keys.principal(secret) == before
    with pytest.raises(StoreUnavailable):
        await keys.principal("another")


async def test_a_secret_of_the_operators_own_is_long_enough_new_and_not_given_away(
    database: Database,
):
    keys = KeyStore(database)
    tenant, lineage = await owner(keys)
    with pytest.raises(ConfigError, match="at least 16"):
        await keys.create(tenant, "ci", Role.ADMIN, lineage, secret="short")
    await keys.create(tenant, "ci", Role.ADMIN, lineage, secret="correct horse staple")
    assert await database.fetchval("SELECT hint FROM api_keys") == "corre"
    with pytest.raises(StoreError, match="exists already"):
        await keys.create(tenant, "ci", Role.ADMIN, lineage, secret="correct horse staple")


async def test_a_refusal_is_not_believed_for_long(database: Database):
    keys, elsewhere = KeyStore(database, ttl_s=0), KeyStore(database)
    tenant, lineage = await owner(keys)
    with pytest.raises(AuthenticationError):
        await keys.principal("sk-made-elsewhere")
    await elsewhere.create(tenant, "ci", Role.AGENT, lineage, secret="sk-made-elsewhere")
    assert (await keys.principal("sk-made-elsewhere")).name == "ci"
    await database.pool.close()
    with pytest.raises(StoreUnavailable):
        await elsewhere.principal("sk-never-seen")


async def test_tenants_and_lineages_are_made_once(database: Database):
    keys = KeyStore(database)
    tenants = await asyncio.gather(*(keys.ensure_tenant("acme") for _ in range(8)))
    assert len(set(tenants)) == 1
    lineages = await asyncio.gather(*(keys.ensure_lineage("default", "tiny") for _ in range(8)))
    assert len(set(lineages)) == 1
    rows = await database.fetch("SELECT lineage_id, version, kind, state FROM policies")
    assert [tuple(row) for row in rows] == [(lineages[0], 0, "base", "live")]
    with pytest.raises(StoreError, match="over tiny, not lora over huge"):
        await keys.ensure_lineage("default", "huge")
    await keys.ensure_lineage("default", "tiny", trains=False)
    assert await database.fetchval("SELECT trains FROM lineages") is False


async def test_a_key_needs_its_tenant(database: Database):
    keys = KeyStore(database)
    _, lineage = await owner(keys)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await keys.create(lineage, "ci", Role.AGENT, lineage)
