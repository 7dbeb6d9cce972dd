"""`nextstate keys` on a real database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.errors import AuthenticationError, ConfigError, NotFound, StoreError
from gateway.local.config import LocalConfig, LocalSettings
from gateway.local.summary import summary
from gateway.records import Role
from gateway.store.database import REVISIONS, Database
from gateway.store.keys import KeyStore
from gateway.store.lineages import LineageStore

Call = Callable[..., str]


@pytest.fixture
def call(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("DATABASE_URL", database_url)

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


async def test_a_key_is_made_shown_once_and_revoked(call: Call, database: Database) -> None:
    await KeyStore(database).ensure_lineage("default", "tiny")

    secret = (await asyncio.to_thread(call, "keys", "create", "ci", "--role", "rollout")).strip()
    principal = await KeyStore(database).principal(secret)
    assert (principal.name, principal.role, principal.tenant) == ("ci", "rollout", "default")
    assert principal.on_stale == "reject"

    text = await asyncio.to_thread(call, "keys", "list", "--json")
    assert secret not in text
    [listed] = json.loads(text)
    assert listed["id"] == str(principal.key_id)
    assert secret.startswith(listed["hint"])
    assert listed["revoked_at"] is None
    assert "ci" in await asyncio.to_thread(call, "keys", "list")

    await asyncio.to_thread(call, "keys", "revoke", listed["id"])
    with pytest.raises(AuthenticationError):
        await KeyStore(database).principal(secret)
    with pytest.raises(NotFound, match="no valid key has the id"):
        await asyncio.to_thread(call, "keys", "revoke", listed["id"])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--role", "agent"], "serve"),
        (["--role", "rollout"], "reject"),
        (["--role", "rollout", "--on-stale", "serve"], "serve"),
        (["--on-stale", "reject"], "reject"),
    ],
)
async def test_what_a_key_gets_while_training_is_behind(
    call: Call, database: Database, options: list[str], found: str
) -> None:
    await KeyStore(database).ensure_lineage("default", "tiny")
    secret = (await asyncio.to_thread(call, "keys", "create", "ci", *options)).strip()
    assert (await KeyStore(database).principal(secret)).on_stale == found
    (listed,) = json.loads(await asyncio.to_thread(call, "keys", "list", "--json"))
    assert listed["on_stale"] == found


async def test_a_key_for_an_unknown_lineage_is_refused(call: Call) -> None:
    with pytest.raises(NotFound, match="there is no lineage 'nova'"):
        await asyncio.to_thread(call, "keys", "create", "ci", "--lineage", "nova")


async def test_the_summary_says_why_nothing_is_learned(
    call: Call, database: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await KeyStore(database).ensure_lineage("default", "tiny")
    await KeyStore(database).ensure_lineage("control", "tiny", trains=False)
    home = tmp_path_factory.mktemp("home")
    found = await summary(
        LocalSettings(gateway={"port": 1}, local=LocalConfig(home=home))  # type: ignore[arg-type]
    )
    assert found["stack"] is None
    assert found["funnel"]["turns"] == 0
    assert found["notes"] == [
        "nothing is served: the gateway at http://127.0.0.1:1 does not answer",
        "nothing is captured: no turn has been served to a key that captures",
        "no judge is alive; 0 turns wait for one",
        "control does not train: it is switched off for this lineage",
        "default does not train: no trainer is alive; 0 samples wait",
    ]


async def test_the_first_admin_key_comes_from_a_file_once(
    call: Call,
    database: Database,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path_factory.mktemp("secrets") / "admin_key"
    path.write_text("an-admin-key-of-our-own\n")
    monkeypatch.setenv("NEXTSTATE_ADMIN_KEY_FILE", str(path))
    monkeypatch.setenv("NEXTSTATE_MODEL__NAME", "tiny")
    for made in ("created", "present"):
        told = json.loads(await asyncio.to_thread(call, "migrate", "--json"))
        assert told == {"revision": REVISIONS[-1], "admin_key": made}
    keys = KeyStore(database)
    principal = await keys.principal("an-admin-key-of-our-own")
    assert (principal.role, principal.tenant) == (Role.ADMIN, "default")
    [row] = await database.fetch("SELECT row_to_json(k)::text AS everything FROM api_keys k")
    assert "an-admin-key-of-our-own" not in row["everything"]
    lineage = await LineageStore(database).named("default")
    assert lineage is not None
    assert (lineage.base_model, lineage.trains) == ("tiny", True)

    await keys.revoke(principal.key_id)
    with pytest.raises(StoreError, match="revoked"):
        await asyncio.to_thread(call, "migrate")
    monkeypatch.setenv("NEXTSTATE_ADMIN_KEY", "another-admin-key-of-our-own")
    with pytest.raises(ConfigError, match="both set"):
        await asyncio.to_thread(call, "migrate")


async def test_an_agents_key_is_not_taken_for_the_first_admins(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads(await asyncio.to_thread(call, "keys", "create", "ci", "--json"))
    monkeypatch.setenv("NEXTSTATE_ADMIN_KEY", told["secret"])
    with pytest.raises(StoreError, match="of role agent"):
        await asyncio.to_thread(call, "migrate")
    revoked = json.loads(await asyncio.to_thread(call, "keys", "revoke", told["id"], "--json"))
    assert revoked == {"id": told["id"], "revoked": True}


async def test_the_first_key_makes_the_lineage_and_later_ones_leave_it(
    call: Call, database: Database
) -> None:
    await asyncio.to_thread(call, "keys", "create", "one")
    await KeyStore(database).ensure_lineage("default", "nextstate", trains=False)
    await asyncio.to_thread(call, "keys", "create", "two")
    lineage = await LineageStore(database).named("default")
    assert lineage is not None
    assert not lineage.trains
