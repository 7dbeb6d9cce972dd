"""Judges killed at random, fifty times during a thousand jobs: each is judged exactly once."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.integration.test_judge_worker import close_desk, open_desk
from tests.scripted_judge import ScriptedJudge, grading

JOBS, KILLS, JUDGES = 1000, 50, 5
ANSWER_S = 0.25

_AT_WORK = "SELECT count(*) FROM workers WHERE kind = 'judge' AND pid = ANY($1::int[])"


class Slow(ScriptedJudge):
    """An endpoint that takes long enough for its askers to be killed while they wait."""

    async def _complete(self, request: web.Request) -> web.Response:
        await asyncio.sleep(ANSWER_S)
        return await super()._complete(request)


async def start(url: str, endpoint: str) -> asyncio.subprocess.Process:
    settings = {
        "CONCURRENCY": "4", "LEASE_S": "2", "POLL_S": "0.2", "MAX_ATTEMPTS": "60",
        "LLM__BASE_URL": endpoint, "LLM__MODEL": "m", "LLM__VOTES": "1", "LINE": '["llm"]',
    }  # fmt: skip
    own: dict[str, Any] = {f"NEXTSTATE_JUDGE__{name}": value for name, value in settings.items()}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "judge",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **own, "DATABASE_URL": url},
    )  # fmt: skip


async def test_fifty_killed_judges_lose_no_job_and_judge_none_twice(
    database_url: str, tmp_path: Path
) -> None:
    desk = await open_desk(database_url, tmp_path / "spool")
    turns = {(await desk.add("And Vienna?")).id for _ in range(JOBS)}
    chance = random.Random(5)
    async with Slow(grading(-1)) as endpoint:
        judges = [await start(desk.url, endpoint.url) for _ in range(JUDGES)]
        for killed in range(KILLS):
            # Spread over all of the work, whatever the pace.
            async with asyncio.timeout(120):
                while await desk.count("state = 'done'") < killed * JOBS // (KILLS + 1):
                    await asyncio.sleep(0.02)
            victim = judges.pop(chance.randrange(JUDGES))
            victim.kill()
            await victim.wait()
            judges.append(await start(desk.url, endpoint.url))
        assert await desk.count("state <> 'done'") > 0
        async with asyncio.timeout(300):
            while await desk.count("state <> 'done'"):
                await asyncio.sleep(0.1)
        # One that still starts does not know how to stop yet.
        pids = [process.pid for process in judges]
        async with asyncio.timeout(60):
            while await desk.database.fetchval(_AT_WORK, pids) < JUDGES:
                await asyncio.sleep(0.1)
        for process in judges:
            process.terminate()
        assert [await process.wait() for process in judges] == [0] * JUDGES
    rows = await desk.database.fetch("SELECT turn_id, round, score, judge FROM judgements")
    assert {row["turn_id"] for row in rows} == turns
    assert len(rows) == JOBS
    assert {(row["round"], row["score"], row["judge"]) for row in rows} == {(1, -1, "llm:m")}
    samples = await desk.database.fetch("SELECT turn_id, state FROM samples")
    assert sorted(row["turn_id"] for row in samples) == sorted(turns)
    assert {row["state"] for row in samples} == {"ready"}
    # Some were taken from the dead, or the kills proved nothing.
    assert await desk.count("attempts > 1") > 0
    await close_desk(desk)
