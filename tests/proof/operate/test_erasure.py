"""A user whose words a version was trained on is erased, over HTTP.

Agents of two users talk to a gateway, a judge and a trainer work beside it, a version goes live;
then one user goes out of every table, and the answer names the version.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from judge.config import JudgeSettings
from judge.worker import run as run_judge
from tests.fixtures_gateway import Gateway, fake_gateway
from tests.integration.test_gateway_erasure import admin, ask, found
from tests.training import open_world

#: Of each user; both make a batch of four.
TALKS = 2
SECRETS = {"ann": "Ann Other of Elm Street", "bob": "Bob Else of Oak Street"}


async def talk(gateway: Gateway, user: str, number: int) -> None:
    """Ask, and be thankful or not for what comes."""
    reaction = ("Thanks, that is what I needed.", "Too long, shorter please.")[number % 2]
    told = [{"role": "user", "content": f"I am {SECRETS[user]}. What is {number}?"}]
    gateway.says("dog")
    await ask(gateway, user, told)
    told += [{"role": "assistant", "content": "dog"}, {"role": "user", "content": reaction}]
    gateway.says("fox")
    await ask(gateway, user, told)


@pytest.mark.timeout(1800)
async def test_a_user_who_was_trained_on_is_erased(
    database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    stop = asyncio.Event()
    async with (
        fake_gateway(database_url, tiny_model, tmp_path) as gateway,
        open_world(database_url, tiny_model, tmp_path / "trainer") as world,
    ):
        for user in SECRETS:
            for number in range(TALKS):
                await talk(gateway, user, number)
        settings = JudgeSettings(
            database=gateway.services.settings.database, model={"path": tiny_model}
        )
        judging = asyncio.create_task(run_judge(settings, stop))
        async with world.training(world.engine):
            await gateway.until(
                "SELECT 1 FROM policies WHERE version = 1 AND state = 'live'", within_s=900
            )
        stop.set()
        await judging
        trained = await gateway.rows(
            "SELECT s.end_user, count(*) AS n FROM samples a JOIN sessions s ON s.id = a.session_id"
            " WHERE a.state = 'trained' GROUP BY 1 ORDER BY 1"
        )
        assert [(row["end_user"], row["n"]) for row in trained] == [("ann", TALKS), ("bob", TALKS)]
        sessions = await gateway.rows("SELECT id FROM sessions WHERE end_user = 'ann'")
        before = await gateway.rows("SELECT count(*) AS n FROM turns")

        status, erased = await admin(gateway, "POST", "/erasures", {"end_user": "ann"})
        assert status == 200, erased
        assert [(one["lineage"], one["version"]) for one in erased["versions"]] == [("default", 1)]
        assert erased["rows"]["samples"] == TALKS
        assert erased["sessions"] == len(sessions)
        assert await found(gateway, SECRETS["ann"]) == []
        names = [str(row["id"]) for row in sessions]
        assert await found(gateway, *names) == ["audit_entries"]
        after = await gateway.rows("SELECT count(*) AS n FROM turns")
        assert before[0]["n"] - after[0]["n"] == erased["rows"]["turns"] > TALKS
        # The other's are all there, and so is the step that was taken on both.
        assert await found(gateway, SECRETS["bob"]) != []
        (step,) = await gateway.rows("SELECT to_version FROM train_steps")
        assert step["to_version"] == 1
        headers = {"authorization": f"Bearer {gateway.keys.admin}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.get(f"{gateway.url}/admin/v1/audit") as answer,
        ):
            assert answer.status == 200
            entries = (await answer.json())["items"]
        assert [entry["action"] for entry in entries] == ["erasure"]
        assert entries[0]["subject"]["versions"] == erased["versions"]
