from __future__ import annotations

import pytest

from gateway.demo import arms
from gateway.errors import StackError
from gateway.store.database import Database
from gateway.store.keys import KeyStore


async def test_a_person_has_a_key_in_each_arm(database: Database) -> None:
    keys = KeyStore(database)
    async with arms.opened(
        database, url="http://127.0.0.1:1", base_model="m", names=("ann", "bob")
    ) as opened:
        ann = await keys.principal(opened.people["ann"].trained.api_key)
        control = await keys.principal(opened.people["bob"].control.api_key)
        facts = await keys.principal(opened.facts.api_key)
        assert str(opened.facts.base_url) == "http://127.0.0.1:1/v1/"
    assert (ann.name, ann.lineage_id) == ("ann", opened.trained)
    assert (control.name, control.lineage_id) == ("bob", opened.control)
    assert facts.lineage_id == opened.trained
    assert ann.tenant_id == control.tenant_id
    trains = await database.fetch("SELECT id, trains FROM lineages")
    assert {row["id"]: row["trains"] for row in trains} == {
        opened.trained: True,
        opened.control: False,
    }


async def test_a_lineage_that_has_learned_is_no_start(database: Database) -> None:
    lineage = await KeyStore(database).ensure_lineage(arms.TRAINED, "m")
    await database.execute("UPDATE lineages SET live_version = 3 WHERE id = $1", lineage)
    with pytest.raises(StackError, match="version 0"):
        async with arms.opened(database, url="http://x", base_model="m", names=()):
            pass
