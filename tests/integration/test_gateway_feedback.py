"""Feedback by any id that was minted here, of turns and of sessions, before and after judging."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from openai.types.chat import ChatCompletion

from gateway.config import load
from gateway.records import new_id
from judge.config import JudgeSettings
from judge.worker import run
from tests.fixtures_gateway import Gateway
from tests.running import Gateway as Running

ASK: Any = [{"role": "user", "content": "What does the fox say?"}]


class Client:
    """Plain HTTP to one gateway, with an agent's key unless another is given."""

    def __init__(self, gateway: Running, http: aiohttp.ClientSession) -> None:
        self._gateway, self._http = gateway, http

    async def post(
        self, path: str, body: Any, key: str | None = None, once: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        headers = {"authorization": f"Bearer {key or self._gateway.keys.agent}"}
        if once is not None:
            headers["idempotency-key"] = once
        url = f"{self._gateway.url}/v1/{path}"
        async with self._http.post(url, json=body, headers=headers) as answer:
            found: dict[str, Any] = await answer.json(content_type=None)
            return answer.status, found


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as http:
        yield Client(gateway, http)


async def said(
    gateway: Gateway, messages: Any = ASK, session: str | None = None, **values: Any
) -> ChatCompletion:
    for _ in range(values.get("n", 1)):
        gateway.says("Ring-ding-ding.")
    headers = {"X-Session-Id": session, "X-Turn-Type": "main"} if session else {}
    async with gateway.client() as agent:
        reply: ChatCompletion = await agent.chat.completions.create(
            model="tiny", messages=messages, extra_headers=headers, **values
        )
    return reply


def turn_of(reply: ChatCompletion) -> UUID:
    return UUID(reply.id.removeprefix("chatcmpl-"))


async def dialogue(gateway: Gateway, session: str, turns: int) -> list[UUID]:
    """A conversation of so many turns; their ids, the first one first."""
    messages, ids = list(ASK), []
    for number in range(turns):
        reply = await said(gateway, messages, session)
        ids.append(turn_of(reply))
        messages += [
            {"role": "assistant", "content": reply.choices[0].message.content},
            {"role": "user", "content": f"And {number}?"},
        ]
    return ids


async def judged(gateway: Gateway, done: int) -> list[dict[str, Any]]:
    """Judge until so many rounds are done; all of them, the latest last."""
    url = gateway.services.settings.database_url
    settings = load(JudgeSettings, database={"url": url}, judge={"poll_s": 0.1})
    stop = asyncio.Event()
    working = asyncio.create_task(run(settings, stop))
    sql = "SELECT 1 FROM judgements WHERE state = 'done' HAVING count(*) >= $1"
    await gateway.until(sql, done)
    stop.set()
    await working
    return await gateway.rows(
        "SELECT turn_id, round, score, rule FROM judgements WHERE state = 'done' "
        "ORDER BY done_at, turn_id"
    )


async def test_a_turn_is_named_by_any_id_that_it_gave(gateway: Gateway, client: Client) -> None:
    completion = await said(gateway)
    turn_id = turn_of(completion)
    names = [str(turn_id), turn_id.hex, completion.id]
    for name in names:
        status, found = await client.post(f"turns/{name}/feedback", {"thumbs": "up"})
        assert (status, found["turn_id"]) == (202, str(turn_id))
    gateway.says("Ring-ding-ding.")
    async with gateway.client() as agent:
        response = await agent.responses.create(model="tiny", input="What does the fox say?")
    of_response = await gateway.rows("SELECT id FROM turns WHERE dialect = 'openai_responses'")
    for name in (response.id, response.output[-1].id):
        status, found = await client.post(f"turns/{name}/feedback", {"score": -0.5})
        assert (status, found["turn_id"]) == (202, str(of_response[0]["id"]))
    gateway.says("Ring-ding-ding.")
    body = {"model": "tiny", "max_tokens": 50, "messages": ASK}
    _, message = await client.post("messages", body)
    status, found = await client.post(f"turns/{message['id']}/feedback", {"score": -0.5})
    (row,) = await gateway.rows("SELECT id FROM turns WHERE dialect = 'anthropic_messages'")
    assert (status, found["turn_id"]) == (202, str(row["id"]))


async def test_a_score_that_is_next_to_nothing_is_none(gateway: Gateway, client: Client) -> None:
    """Columns have 4 bytes, which hold nothing below 1.4e-45 but 0."""
    completion = await said(gateway)
    for tiny in (1e-320, -1e-46, 5e-324):
        status, found = await client.post(f"turns/{completion.id}/feedback", {"score": tiny})
        assert status == 202, found
    rows = await gateway.rows("SELECT score FROM feedback")
    assert [row["score"] for row in rows] == [0.0, 0.0, 0.0]
    assert (await client.post(f"turns/{completion.id}/feedback", {"score": 2e-45}))[0] == 202


async def test_one_choice_of_several_is_meant(gateway: Gateway, client: Client) -> None:
    reply = await said(gateway, n=3)
    rows = await gateway.rows("SELECT id FROM turns ORDER BY id")
    for choice in range(3):
        body = {"thumbs": "up", "choice": choice}
        status, found = await client.post(f"turns/{reply.id}/feedback", body)
        assert (status, found["turn_id"]) == (202, str(rows[choice]["id"]))
    status, found = await client.post(f"turns/{reply.id}/feedback", {"score": 1, "choice": 3})
    assert (status, found["code"]) == (404, "not_found")
    assert "3 choices" in found["detail"]


async def test_what_cannot_be_meant_is_said_in_json(gateway: Gateway, client: Client) -> None:
    reply = await said(gateway, session="theirs")
    good = {"thumbs": "up"}
    for name in ("nothing", f"resp_{new_id().hex}", str(new_id()), "chatcmpl-12"):
        status, found = await client.post(f"turns/{name}/feedback", good)
        assert (status, found["detail"]) == (404, "There is no such turn.")
        status, found = await client.post(f"sessions/{name}/feedback", good)
        assert (status, found["detail"]) == (404, "There is no such session.")
    for wrong in (
        {}, {"score": 2}, {"score": 1, "thumbs": "up"}, {"thumbs": "sideways"}, {"score": "high"},
        {"score": 1, "source": "a b"}, {"score": 1, "text": "x" * 8193}, {"score": 1, "more": 1},
        [1], "up",
    ):  # fmt: skip
        status, found = await client.post(f"turns/{reply.id}/feedback", wrong)
        assert (status, found["code"]) == (400, "invalid_request")
        status, found = await client.post("sessions/theirs/feedback", wrong)
        assert (status, found["code"]) == (400, "invalid_request")
    for gamma in (-0.1, 1.1, "half"):
        status, found = await client.post("sessions/theirs/feedback", {**good, "gamma": gamma})
        assert status == 400
    # Another tenant's turns and sessions are not there, whatever they are called.
    stranger = gateway.keys.stranger
    (session,) = await gateway.rows("SELECT id FROM sessions")
    for path in (f"turns/{reply.id}", "sessions/theirs", f"sessions/{session['id']}"):
        status, _ = await client.post(f"{path}/feedback", good, stranger)
        assert status == 404
    assert await gateway.rows("SELECT * FROM feedback") == []


async def test_the_same_key_counts_once_and_for_one_thing(gateway: Gateway, client: Client) -> None:
    first, second = await said(gateway), await said(gateway, [{"role": "user", "content": "Hm?"}])
    _, stored = await client.post(f"turns/{first.id}/feedback", {"score": 0.1}, once="k")
    status, again = await client.post(f"turns/{first.id}/feedback", {"score": 0.1}, once="k")
    assert (status, again) == (202, stored)
    for path, score in ((f"turns/{first.id}", 0.2), (f"turns/{second.id}", 0.1)):
        status, found = await client.post(f"{path}/feedback", {"score": score}, once="k")
        assert (status, found["code"]) == (409, "conflict")
    assert len(await gateway.rows("SELECT * FROM feedback")) == 1
    # A key is a tenant's own.
    status, _ = await client.post(
        f"turns/{first.id}/feedback", {"score": 1}, gateway.keys.stranger, once="k"
    )
    assert status == 404


async def test_a_sessions_reward_is_discounted_by_the_distance_from_its_end(
    gateway: Gateway, client: Client
) -> None:
    ids = await dialogue(gateway, "game", 3)
    body = {"score": -0.8, "gamma": 0.5, "source": "environment", "text": "lost"}
    status, found = await client.post("sessions/game/feedback", body, once="end")
    assert status == 202
    shares = [(share["turn_id"], share["score"], share["discount"]) for share in found["turns"]]
    assert shares == [
        (str(ids[2]), -0.8, 1.0), (str(ids[1]), -0.4, 0.5), (str(ids[0]), -0.2, 0.25),
    ]  # fmt: skip
    rows = await gateway.rows("SELECT * FROM feedback ORDER BY turn_id")
    assert [row["turn_id"] for row in rows] == ids
    assert [row["score"] for row in rows] == pytest.approx([-0.2, -0.4, -0.8])
    assert [row["discount"] for row in rows] == [0.25, 0.5, 1.0]
    assert {(row["session_id"], row["source"], row["text"]) for row in rows} == {
        (UUID(found["session_id"]), "environment", "lost")
    }
    # The same key again changes nothing, even where the session has gone on.
    await dialogue(gateway, "game", 1)
    status, again = await client.post("sessions/game/feedback", body, once="end")
    assert status == 202
    assert [share["turn_id"] for share in again["turns"]] == [share[0] for share in shares]
    assert [share["score"] for share in again["turns"]] == pytest.approx([-0.8, -0.4, -0.2])
    assert len(await gateway.rows("SELECT * FROM feedback")) == 3
    status, _ = await client.post("sessions/game/feedback", {"score": 1}, once="end")
    assert status == 409
    scores = {row["turn_id"]: row["score"] for row in await judged(gateway, 3)}
    assert [scores[turn_id] for turn_id in ids] == pytest.approx([-0.2, -0.4, -0.8])


async def test_without_a_discount_every_turn_has_the_whole_and_with_none_left_only_the_last(
    gateway: Gateway, client: Client
) -> None:
    ids = await dialogue(gateway, "game", 2)
    (session,) = await gateway.rows("SELECT id FROM sessions")
    _, found = await client.post(f"sessions/{session['id']}/feedback", {"thumbs": "up"})
    assert [(s["turn_id"], s["score"]) for s in found["turns"]] == [
        (str(ids[1]), 1.0), (str(ids[0]), 1.0),
    ]  # fmt: skip
    _, found = await client.post("sessions/game/feedback", {"thumbs": "down", "gamma": 0})
    assert [(s["turn_id"], s["score"]) for s in found["turns"]] == [(str(ids[1]), -1.0)]


async def test_choices_share_a_place_and_what_the_user_discarded_has_none(
    gateway: Gateway, client: Client
) -> None:
    reply = await said(gateway, session="game", n=2)
    messages = [
        *ASK,
        {"role": "assistant", "content": reply.choices[0].message.content},
        {"role": "user", "content": "Once more."},
    ]
    last = await said(gateway, messages, "game")
    _, found = await client.post("sessions/game/feedback", {"score": 1, "gamma": 0.5})
    assert [share["discount"] for share in found["turns"]] == [1.0, 0.5, 0.5]
    (gone,) = await gateway.rows("UPDATE next_states SET how = 'rolled_back' RETURNING turn_id")
    _, found = await client.post("sessions/game/feedback", {"score": 1, "gamma": 0.5})
    assert found["turns"][0]["turn_id"] == str(turn_of(last))
    assert str(gone["turn_id"]) not in {share["turn_id"] for share in found["turns"]}


async def test_a_word_of_the_turn_itself_stands_above_its_share_and_history_is_kept(
    gateway: Gateway, client: Client
) -> None:
    (turn_id,) = await dialogue(gateway, "game", 1)
    await client.post("sessions/game/feedback", {"score": -1, "source": "environment"})
    assert [(r["round"], r["score"], r["rule"]) for r in await judged(gateway, 1)] == [
        (1, -1.0, "feedback")
    ]
    await client.post(f"turns/{turn_id}/feedback", {"score": 0.5})
    rounds = [(r["round"], r["score"]) for r in await judged(gateway, 2)]
    assert rounds == [(1, -1.0), (2, 0.5)]
    (sample,) = await gateway.rows("SELECT score, state FROM samples")
    assert (sample["score"], sample["state"]) == (0.5, "ready")


async def test_readiness_tells_how_judging_is_and_never_depends_on_it(
    gateway: Gateway, client: Client
) -> None:
    async def told() -> tuple[int, dict[str, Any]]:
        async with client._http.get(f"{gateway.url}/readyz") as answer:
            return answer.status, (await answer.json())["judge"]

    assert await told() == (200, {"state": "none", "judges": 0, "alarms": []})
    add = (
        "INSERT INTO workers (id, kind, host, pid, revision, detail) "
        "VALUES ($1, 'judge', 'h', 1, '0003', $2)"
    )
    database = gateway.services.database
    await database.execute(add, new_id(), {"alarms": []})
    assert await told() == (200, {"state": "ok", "judges": 1, "alarms": []})
    await database.execute(add, new_id(), {"alarms": ["disagreement"]})
    assert await told() == (200, {"state": "alarm", "judges": 2, "alarms": ["disagreement"]})
    await database.execute("ALTER TABLE workers RENAME TO elsewhere")
    assert await told() == (200, {"state": "unknown", "judges": None, "alarms": []})
    await database.execute("ALTER TABLE elsewhere RENAME TO workers")
