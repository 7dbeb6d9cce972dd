from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI

from gateway.demo.crowd import Clients, Crowd, Pace, Turns
from gateway.demo.facts import ask_facts
from gateway.demo.questions import FACTS
from gateway.demo.users import CONTENT, IMPATIENT, USERS, Manner, Tally, User, converse

SHORT, LONG = "Five words are quite enough.", "word " * 40
Answer = Callable[[dict[str, Any]], tuple[str, str] | web.Response]


class Upstream:
    """An OpenAI-like server: `answer` turns a request body into (text, finish reason)."""

    def __init__(self) -> None:
        self.answer: Answer = lambda body: (SHORT, "stop")
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.busy = 0
        self.busiest = 0

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await asyncio.sleep(0.01)
        self.busy -= 1
        answer = self.answer(body)
        if isinstance(answer, web.Response):
            return answer
        text, finish = answer
        message = {"role": "assistant", "content": text}
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            }
        )


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[Upstream, str]]:
    server = Upstream()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield server, f"http://{host}:{port}/v1"
    await runner.cleanup()


@pytest.fixture
async def client(upstream: tuple[Upstream, str]) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=upstream[1], api_key="k", max_retries=1) as client:
        yield client


PATIENT = User(name="p", words=5, system="Be brief.", persistence=1.0)
HASTY = User(name="h", words=5, system="Be brief.", persistence=0.0)
MANNER = Manner(model="m", closing_tokens=7)


async def talk(client: AsyncOpenAI, user: User) -> tuple[bool, Tally]:
    tally = Tally()
    went = await converse(user, client, "Why?", manner=MANNER, rng=random.Random(1), tally=tally)
    return went, tally


@pytest.mark.parametrize(
    ("reply", "finish", "pleased"),
    [
        ("one two three four five", "stop", True),
        ("one two three four five six", "stop", False),
        ("one two", "length", False),
        ("", "stop", False),
    ],
)
def test_a_user_wants_a_finished_and_short_reply(reply: str, finish: str, pleased: bool) -> None:
    assert HASTY.pleased(reply, finish) is pleased


async def test_a_pleased_user_thanks_and_leaves(
    upstream: tuple[Upstream, str], client: AsyncOpenAI
) -> None:
    went, tally = await talk(client, PATIENT)
    first, closing = upstream[0].bodies
    assert went
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
    ]
    assert closing["messages"][:3] == [
        *first["messages"],
        {"role": "assistant", "content": SHORT},
    ]
    assert closing["messages"][3]["content"] in CONTENT
    assert (first["max_tokens"], closing["max_tokens"]) == (64, 7)
    assert (first["temperature"], first["top_p"]) == (0.8, 1)
    assert (tally.requests, tally.failed, tally.open) == (2, 0, 0)


async def test_an_impatient_user_complains_and_leaves(
    upstream: tuple[Upstream, str], client: AsyncOpenAI
) -> None:
    upstream[0].answer = lambda body: (LONG, "stop")
    await talk(client, HASTY)
    assert len(upstream[0].bodies) == 2
    assert upstream[0].bodies[1]["messages"][-1]["content"] in IMPATIENT


async def test_a_persistent_user_waits_for_a_second_answer(
    upstream: tuple[Upstream, str], client: AsyncOpenAI
) -> None:
    upstream[0].answer = lambda body: (LONG if len(body["messages"]) == 2 else SHORT, "stop")
    await talk(client, PATIENT)
    last = upstream[0].bodies[-1]["messages"]
    assert [body["max_tokens"] for body in upstream[0].bodies] == [64, 64, 7]
    assert last[3]["content"] in IMPATIENT
    assert last[5]["content"] in CONTENT


async def test_a_failed_request_is_retried_by_the_client_and_then_counted(
    upstream: tuple[Upstream, str], client: AsyncOpenAI
) -> None:
    upstream[0].answer = lambda body: web.json_response({"error": {}}, status=503)
    went, tally = await talk(client, HASTY)
    assert not went
    assert (tally.requests, tally.failed, tally.open) == (1, 1, 0)
    assert tally.errors == ["InternalServerError"]
    assert [h["x-stainless-retry-count"] for h in upstream[0].headers] == ["0", "1"]


def test_there_are_eight_users_whose_preferences_do_not_conflict() -> None:
    assert len({user.name for user in USERS}) == 8
    assert {user.words for user in USERS} == {25, 35, 45}


def arms(turns: Turns, count: int) -> str:
    found = ""
    for _ in range(count):
        if turns.control_next():
            turns.control += 1
            found += "c"
        else:
            turns.trained += 1
            found += "t"
    return found


def test_a_control_conversation_is_due_once_its_share_falls_behind() -> None:
    assert arms(Turns(share=0.5), 6) == "tcttct"
    assert arms(Turns(share=0.5, phase=0.6), 6) == "ttcttc"
    assert arms(Turns(share=0.0), 3) == "ttt"


def test_there_is_room_for_two_batches() -> None:
    assert Pace(batch=16, waiting=20, running=8).room == 4
    assert Pace(batch=16, waiting=30, running=8).room < 0


def crowd(url: str, users: tuple[User, ...], *, share: float, batch: int = 100) -> Crowd:
    def client(key: str) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=url, api_key=key, max_retries=0)

    return Crowd(
        users=users,
        clients={
            user.name: Clients(
                trained=client(f"{user.name}-trained"), control=client(f"{user.name}-control")
            )
            for user in users
        },
        questions=("Why?", "How?"),
        manner=MANNER,
        pace=Pace(batch=batch),
        control_share=share,
        seed=1,
    )


async def close(crowd: Crowd) -> None:
    for pair in crowd._clients.values():
        await pair.trained.close()
        await pair.control.close()


async def test_a_crowd_talks_in_both_arms_until_it_is_stopped(
    upstream: tuple[Upstream, str],
) -> None:
    server, url = upstream
    people = crowd(url, (HASTY, PATIENT), share=0.5)

    def answer(body: dict[str, Any]) -> tuple[str, str]:
        if len(server.bodies) >= 40:
            people.stop.set()
        return SHORT, "stop"

    server.answer = answer
    await asyncio.wait_for(people.run(), 120)
    await close(people)
    opened = [
        (header["authorization"], body["messages"][1]["content"])
        for header, body in zip(server.headers, server.bodies, strict=True)
        if len(body["messages"]) == 2
    ]
    assert 40 <= len(server.bodies) <= 44
    assert people.tally.requests == len(server.bodies) == 2 * len(opened)
    for name in ("h", "p"):
        trained = [asked for key, asked in opened if key == f"Bearer {name}-trained"]
        control = [asked for key, asked in opened if key == f"Bearer {name}-control"]
        # Half as many, give or take the phase.
        assert abs(len(control) - len(trained) / 2) <= 1.5
        # Both questions are dealt before either comes again.
        assert abs(trained.count("Why?") - trained.count("How?")) <= 1
        assert abs(control.count("Why?") - control.count("How?")) <= 1


async def test_nobody_comes_in_while_the_queue_is_full(upstream: tuple[Upstream, str]) -> None:
    server, url = upstream
    people = crowd(url, (HASTY, PATIENT), share=0.0, batch=1)
    people.pace.waiting = 2
    running = asyncio.create_task(people.run())
    await asyncio.sleep(0.3)
    assert server.bodies == []
    came = asyncio.Event()

    def answer(body: dict[str, Any]) -> tuple[str, str]:
        came.set()
        return SHORT, "stop"

    server.answer = answer
    people.pace.waiting = 1
    await asyncio.wait_for(came.wait(), 120)
    people.stop.set()
    await asyncio.wait_for(running, 120)
    await close(people)
    assert people.pace.running == 0


async def test_facts_are_asked_aside_at_temperature_0(
    upstream: tuple[Upstream, str], client: AsyncOpenAI
) -> None:
    tally = Tally()
    await ask_facts(client, "m", tally)
    asked = {body["messages"][-1]["content"] for body in upstream[0].bodies}
    assert asked == {fact.question for fact in FACTS}
    assert {body["temperature"] for body in upstream[0].bodies} == {0}
    assert {header["x-turn-type"] for header in upstream[0].headers} == {"side"}
    assert 1 < upstream[0].busiest <= 4
    assert (tally.requests, tally.failed) == (20, 0)
