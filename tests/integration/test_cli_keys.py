"""`nextstate keys` on a real database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.errors import AuthenticationError, NotFound
from gateway.local.config import LocalConfig, LocalSettings
from gateway.local.summary import summary
from gateway.store.database import Database
from gateway.store.keys import KeyStore

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
