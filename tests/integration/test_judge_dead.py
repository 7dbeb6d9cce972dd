"""A judge that is dead under load: serving goes on, and its jobs are done later."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.config import load
from judge.config import JudgeSettings
from judge.worker import run
from tests.fixtures_gateway import Gateway

FOLLOWED = ("Thanks, that is what I needed.", "That's wrong.")


async def converse(gateway: Gateway, name: str, turns: int) -> None:
    """One session of so many turns; raises where a request is not served."""
    messages: list[Any] = [{"role": "user", "content": f"Question of {name}?"}]
    async with gateway.client() as client:
        for number in range(turns):
            reply = await client.chat.completions.create(
                model="tiny",
                messages=messages,
                max_tokens=8,
                extra_headers={"X-Session-Id": name, "X-Turn-Type": "main"},
            )
            said = reply.choices[0].message.content
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": FOLLOWED[number % 2]})


async def judge_later(gateway: Gateway, sessions: int, turns: int) -> None:
    """Load without a judge; then one that finds every job, each judged once."""
    names = [f"session {number}" for number in range(sessions)]
    await asyncio.gather(*(converse(gateway, name, turns) for name in names))
    jobs = sessions * (turns - 1)
    states = await gateway.rows("SELECT state, count(*) AS n FROM judgements GROUP BY state")
    assert [(row["state"], row["n"]) for row in states] == [("queued", jobs)]
    (served,) = await gateway.rows("SELECT count(*) AS n FROM turns")
    assert served["n"] == sessions * turns
    settings = load(
        JudgeSettings,
        database={"url": gateway.services.settings.database_url},
        judge={"poll_s": 0.1},
    )
    stop = asyncio.Event()
    working = asyncio.create_task(run(settings, stop))
    all_done = "SELECT 1 FROM judgements WHERE state = 'done' HAVING count(*) = $1"
    await gateway.until(all_done, jobs, within_s=600)
    stop.set()
    await working
    (done,) = await gateway.rows(
        "SELECT count(*) AS n, count(DISTINCT turn_id) AS turns, max(round) AS round, "
        "max(attempts) AS attempts FROM judgements WHERE state = 'done'"
    )
    assert tuple(done.values()) == (jobs, jobs, 1, 1)


async def test_serving_goes_on_without_a_judge_and_its_jobs_are_done_later(
    gateway: Gateway,
) -> None:
    await judge_later(gateway, sessions=4, turns=3)
