"""Sessions without a word from the client, over real sockets and a real Postgres."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import SecretStr

from gateway.config import DatabaseSettings
from gateway.records import new_id
from gateway.store.claims import JudgeClaims
from gateway.store.settings import SettingStore
from tests.dialects import first_event
from tests.fakes import Turnstile
from tests.fixtures_gateway import Gateway, fake_gateway

ASK = [{"role": "user", "content": "The quick brown fox?"}]


async def post(
    gateway: Gateway, messages: list[dict[str, Any]], key: str | None = None, **headers: str
) -> str:
    """The text of the reply."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    given["authorization"] = f"Bearer {key or gateway.keys.agent}"
    async with (
        aiohttp.ClientSession(headers=given) as http,
        http.post(
            f"{gateway.url}/v1/chat/completions", json={"model": "tiny", "messages": messages}
        ) as answer,
    ):
        body = json.loads(await answer.text())
        assert answer.status == 200, body
        return str(body["choices"][0]["message"]["content"])


def told(reply: str, then: str, first: str = "The quick brown fox?") -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": first},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": then},
    ]


async def test_who_leaves_and_asks_again_has_one_turn(gateway: Gateway) -> None:
    gateway.engine.chunk_delay_s = 0.05
    gateway.says("fox " * 100)
    body = {"model": "tiny", "messages": ASK, "stream": True}
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer:
            assert await first_event(answer)
        first = await gateway.until("SELECT id, session_id, delivered FROM turns")
    gateway.engine.chunk_delay_s = 0
    gateway.says("dog")
    gateway.says("fox")
    assert await post(gateway, ASK) == "dog"
    await post(gateway, told("dog", "lazy"))
    _, again, third = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert not first["delivered"]
    assert (again["retry_of"], again["session_id"]) == (first["id"], first["session_id"])
    assert (again["parent_id"], again["resolve_rule"]) == (None, "retry")
    assert (third["parent_id"], third["retry_of"]) == (again["id"], None)


async def test_equal_bodies_alone_are_no_retry(gateway: Gateway) -> None:
    for _ in range(3):
        gateway.says("dog")
        await post(gateway, ASK)
    rows = await gateway.rows("SELECT DISTINCT session_id FROM turns WHERE retry_of IS NULL")
    assert len(rows) == 3


async def test_an_idempotency_key_makes_a_retry(gateway: Gateway) -> None:
    for key in ("a", "a", "b"):
        gateway.says("dog")
        await post(gateway, ASK, idempotency_key=key)
    one, again, other = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert (again["retry_of"], again["session_id"]) == (one["id"], one["session_id"])
    assert other["retry_of"] is None
    assert other["session_id"] != one["session_id"]


async def test_another_key_is_no_retry_and_no_parent(gateway: Gateway) -> None:
    for key in (gateway.keys.agent, gateway.keys.stranger):
        for messages in (ASK, told("dog", "lazy")):
            gateway.says("dog")
            await post(gateway, messages, key, idempotency_key=f"k{len(messages)}")
    rows = await gateway.rows("SELECT tenant_id, session_id, retry_of FROM turns")
    assert len({row["session_id"] for row in rows}) == 2
    assert len({(row["tenant_id"], row["session_id"]) for row in rows}) == 2
    assert {row["retry_of"] for row in rows} == {None}


async def test_a_rewritten_history_is_a_branch_of_its_session(gateway: Gateway) -> None:
    gateway.says("dog")
    await post(gateway, ASK)
    gateway.says("the lazy dog")
    await post(gateway, told("dog", "lazy"))
    gateway.says("fox")
    rewritten = [
        *told("dog", "LAZY (edited)"),
        {"role": "assistant", "content": "the  lazy dog\n"},
        {"role": "user", "content": "brown"},
    ]
    await post(gateway, rewritten)
    _, two, three = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert (three["session_id"], three["parent_id"]) == (two["session_id"], two["id"])
    assert (three["resolve_rule"], three["branch_reason"]) == ("outline", "history_edited")
    assert three["messages"] == [{"role": "user", "content": "brown"}]
    [state] = await gateway.rows("SELECT messages FROM next_states WHERE turn_id = $1", two["id"])
    assert state["messages"] == [{"role": "user", "content": "brown"}]


async def test_a_correction_after_a_rollback_is_what_followed_the_discarded_reply(
    gateway: Gateway,
) -> None:
    for says, messages in (
        ("dog", ASK),
        ("the lazy dog", told("dog", "lazy")),
        ("fox", told("dog", "quick")),
        ("over", [*told("dog", "quick"), {"role": "assistant", "content": "fox"}, ASK[0]]),
    ):
        gateway.says(says)
        await post(gateway, messages)
    first, discarded, third, _ = await gateway.rows("SELECT * FROM turns ORDER BY id")
    assert {first["session_id"]} == {discarded["session_id"], third["session_id"]}
    assert (third["parent_id"], third["resolve_rule"]) == (first["id"], "prefix_branch")
    states = {row["turn_id"]: row for row in await gateway.rows("SELECT * FROM next_states")}
    assert {turn: state["how"] for turn, state in states.items()} == {
        first["id"]: "continued",
        discarded["id"]: "rolled_back",
        third["id"]: "continued",
    }
    assert states[first["id"]]["messages"] == [{"role": "user", "content": "lazy"}]
    instead = states[discarded["id"]]
    assert (instead["messages"], instead["following_id"]) == (
        [{"role": "user", "content": "quick"}],
        third["id"],
    )
    jobs = await JudgeClaims(gateway.services.database).claim(new_id(), 10, 60)
    told_how = {job.turn_id: (job.how, job.next_state[0]["content"]) for job in jobs}
    assert told_how == {
        first["id"]: ("continued", "lazy"),
        discarded["id"]: ("rolled_back", "quick"),
        third["id"]: ("continued", "The quick brown fox?"),
    }


async def test_what_only_looks_like_a_rollback_is_none(gateway: Gateway) -> None:
    body = {"model": "tiny", "messages": told("dog", "lazy")}
    gateway.says("dog")
    await post(gateway, ASK)
    # Asked again with nothing changed, and several choices of one request.
    for _ in range(2):
        gateway.says("fox")
        await post(gateway, told("dog", "lazy"))
    for _ in range(2):
        gateway.says("fox")
    async with gateway.client() as client:
        await client.chat.completions.create(**body, n=2)  # type: ignore[call-overload]
    # Of replies that one request got several of, none is known to be the one that was discarded.
    gateway.says("fox")
    await post(gateway, told("dog", "quick"))
    hows = await gateway.rows("SELECT how FROM next_states")
    assert hows == [{"how": "continued"}]


async def test_two_users_who_begin_alike_roll_back_nothing(gateway: Gateway) -> None:
    """Both are told the same; the second goes on with words of his own."""
    for _ in range(2):
        gateway.says("dog")
        await post(gateway, ASK)
    for then in ("lazy", "quick"):
        gateway.says("fox")
        await post(gateway, told("dog", then))
    hows = await gateway.rows("SELECT turn_id, how FROM next_states")
    assert {row["how"] for row in hows} == {"continued"}
    assert len(hows) == 2
    sessions = await gateway.rows("SELECT session_id, count(*) AS n FROM turns GROUP BY 1")
    assert sorted(row["n"] for row in sessions) == [2, 2]


async def test_requests_that_are_under_way_at_once_roll_back_nothing(gateway: Gateway) -> None:
    gateway.says("dog")
    await post(gateway, ASK)
    gateway.engine.turnstile = gate = Turnstile()
    for _ in range(2):
        gateway.says("fox")
    asked = [asyncio.create_task(post(gateway, told("dog", then))) for then in ("lazy", "quick")]
    # Both are in their places before either has a reply.
    await gate.let(2)
    gateway.engine.turnstile = None
    for _ in range(20):
        gate.release()
    await asyncio.gather(*asked)
    hows = await gateway.rows("SELECT how FROM next_states")
    assert hows == [{"how": "continued"}]


async def test_a_sub_agent_has_a_session_of_its_own(gateway: Gateway) -> None:
    gateway.says("dog")
    await post(gateway, ASK, x_session_id="main")
    gateway.says("fox")
    await post(gateway, ASK, x_session_id="helper", x_parent_session_id="main")
    main, helper = await gateway.rows("SELECT * FROM sessions ORDER BY external_id = 'helper'")
    assert helper["parent_session_id"] == main["id"]
    assert main["parent_session_id"] is None
    kinds = await gateway.rows("SELECT kind, kind_rule FROM turns ORDER BY id")
    assert [(row["kind"], row["kind_rule"]) for row in kinds] == [
        ("unknown", "first_turn"),
        ("side", "subagent"),
    ]


async def test_a_parent_is_found_while_postgres_is_away(
    database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    impatient = DatabaseSettings(
        url=SecretStr(database_url), spool=tmp_path / "spool", commit_timeout_s=1
    )
    async with fake_gateway(database_url, tiny_model, tmp_path, database=impatient) as gateway:
        gateway.says("dog")
        await post(gateway, ASK)
        gateway.says("fox")
        database = gateway.services.database
        async with database.transaction() as connection:
            # Whatever reads or writes turns hangs from here on.
            await connection.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
            await post(gateway, told("dog", "lazy"))
        async with asyncio.timeout(120):
            while len(rows := await gateway.rows("SELECT * FROM turns ORDER BY id")) < 2:
                await asyncio.sleep(0.05)
        one, two = rows
        assert (two["session_id"], two["parent_id"]) == (one["session_id"], one["id"])
        assert two["resolve_rule"] == "prefix"
        assert two["shared_len"] == one["prompt_len"] + one["completion_len"]


async def test_rules_change_while_requests_are_served(gateway: Gateway) -> None:
    gateway.says("dog")
    await post(gateway, ASK, x_turn_type="helper")
    store = SettingStore(gateway.services.database)
    await store.put("session_awareness", {"auxiliary_patterns": ["helper"]})
    async with asyncio.timeout(60):
        while True:
            gateway.says("dog")
            await post(gateway, ASK, x_turn_type="helper")
            rules = [
                row["kind_rule"] for row in await gateway.rows("SELECT * FROM turns ORDER BY id")
            ]
            if rules[-1] != "first_turn":
                break
    assert (rules[0], rules[-1]) == ("first_turn", "auxiliary_pattern")
