"""The run's course, with readings that follow what a scripted server was asked."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI
from rich.console import Console

from gateway.demo.claims import Goals
from gateway.demo.crowd import Clients, Crowd, Pace
from gateway.demo.loop import FULL, QUICK, Demo, Plan
from gateway.demo.questions import FACTS
from gateway.demo.readings import Reader, Readings, Turn
from gateway.demo.report import Report
from gateway.demo.table import Progress
from gateway.demo.users import Manner, User
from gateway.errors import StoreUnavailable

EACH = 4


class World(Reader):
    """Serves replies, and reports a new version after every `EACH` trained first turns.

    The base model's replies score -1, those of later versions +1; facts are always known.
    """

    def __init__(self, *, most: int) -> None:
        self.most = most
        self.turns: list[Turn] = []
        self.control: list[Turn] = []
        self.facts: list[Turn] = []
        self.broken = False
        self._version = 0

    @property
    def version(self) -> int:
        if len(self.facts) % len(FACTS) == 0:  # No swap in the middle of the facts.
            self._version = min(len(self.turns) // EACH, self.most)
        return self._version

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        arm = request.headers["authorization"].removeprefix("Bearer ")
        asked = body["messages"][1]["content"]
        reply = next((f.answer for f in FACTS if f.question == asked), "So.").strip(r"\b(")
        version = 0 if arm == "control" else self.version
        turn = Turn(
            person=arm, question=asked, reply=reply.split("|")[0], version=version, tokens=3,
            score=1.0 if version else -1.0,
        )  # fmt: skip
        if request.headers.get("x-turn-type") == "side":
            self.facts.append(turn)
        elif len(body["messages"]) == 2:
            (self.control if arm == "control" else self.turns).append(turn)
        message = {"role": "assistant", "content": reply}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        base: dict[str, Any] = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
        return web.json_response({**base, "choices": [choice]})

    async def read(self) -> Readings:
        if self.broken:
            raise StoreUnavailable("Postgres cannot be reached")
        return Readings(
            turns=tuple(self.turns),
            control=tuple(self.control),
            facts=tuple(self.facts),
            swap_ms=dict.fromkeys(range(1, self.version + 1), 10.0),
            lag_max=dict.fromkeys(range(1, self.version + 1), 0),
        )


@contextlib.asynccontextmanager
async def serving(world: World, plan: Plan) -> AsyncIterator[Demo]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", world.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    opened = [
        AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key=key, max_retries=0)
        for key in ("u", "control", "facts")
    ]
    user = User(name="u", words=9, system="Be brief.")
    try:
        yield Demo(
            plan=plan,
            reader=world,
            crowd=Crowd(
                users=[user],
                clients={"u": Clients(trained=opened[0], control=opened[1])},
                questions=[f"Why {n}?" for n in range(50)],
                manner=Manner(model="m"),
                pace=Pace(batch=plan.batch),
                control_share=plan.control_share,
                seed=1,
            ),
            facts=opened[2],
            model="m",
            progress=Progress(Console(file=io.StringIO())),
        )
    finally:
        for client in opened:
            await client.close()
        await runner.cleanup()


async def run(world: World, plan: Plan) -> Report:
    async with serving(world, plan) as demo:
        return await asyncio.wait_for(demo.run(), 60)


async def test_a_run_ends_when_enough_versions_have_answered_enough() -> None:
    goals = Goals(versions=4, turns=4)
    world = World(most=4)
    report = await run(
        world, Plan(versions=4, final=2, turns=6, look_s=0.01, control_share=0.5, goals=goals)
    )
    assert all(claim.held for claim in report.claims), report.claims
    assert [row.version for row in report.rows] == [0, 1, 2, 3, 4]
    assert report.control.turns >= 6
    assert report.gain is not None
    assert report.gain.mean == pytest.approx(2.0)
    # Versions 3 and 4 held six turns when it ended.
    assert sum(turn.version in (3, 4) for turn in world.turns) >= 6


async def test_facts_are_asked_first_at_every_second_version_and_last() -> None:
    report = await run(World(most=5), Plan(versions=5, final=1, turns=8, look_s=0.01))
    asked = {row.version for row in report.rows if row.facts is not None}
    assert {0, 5} <= asked
    assert asked & {2, 3}
    assert all(row.facts == 1.0 for row in report.rows if row.facts is not None)


async def test_the_budget_ends_a_run_that_publishes_nothing() -> None:
    report = await run(World(most=0), Plan(budget_s=0.5, look_s=0.01))
    failed = {claim.name for claim in report.claims if not claim.held}
    assert failed == {"versions", "trained versions answer", "gain", "facts"}
    assert report.wall_s >= 0.5


async def test_a_database_that_is_away_ends_the_run_and_the_users() -> None:
    world = World(most=0)
    async with serving(world, Plan(look_s=0.01)) as demo:
        world.broken = True
        with pytest.raises(StoreUnavailable):
            await demo.run()
        assert demo._crowd.tally.open == 0


def test_the_full_plan_is_what_is_claimed_of_it() -> None:
    assert FULL.versions >= FULL.goals.versions >= 8
    assert FULL.turns == FULL.goals.turns == 64
    assert FULL.goals.gain == 0.3
    assert FULL.budget_s < 24 * 60
    assert FULL.facts_every <= 2
    assert QUICK.versions == QUICK.goals.versions == 2
    assert not QUICK.goals.learning
