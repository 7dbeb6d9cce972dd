"""Prompts over a conversation's history that it does not go on from, over a real Postgres."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import aiohttp

from gateway.records import NextState, new_id
from gateway.store.claims import JudgeClaims
from tests.dialects import first_event
from tests.fixtures_gateway import Gateway

Messages = list[dict[str, Any]]

BASE = {"role": "system", "content": "You help."}
OTHER = {"role": "system", "content": "You suggest what to ask next."}
SUGGEST = "Suggest three questions that I could ask next."


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Talk:
    """A conversation that is told to the gateway from its beginning each time."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.history: Messages = []

    async def ask(self, text: str, says: str = "dog", **more: Any) -> None:
        self.history += [user(text)]
        reply = await self._post([BASE, *self.history], says, **more)
        self.history += [{"role": "assistant", "content": reply}]

    async def beside(
        self, text: str = SUGGEST, system: dict[str, Any] = OTHER, says: str = "fox", **more: Any
    ) -> None:
        await self._post([system, *self.history, user(text)], says, **more)

    async def _post(self, messages: Messages, says: str, **more: Any) -> str:
        self.gateway.says(says)
        headers = {"authorization": f"Bearer {self.gateway.keys.agent}"}
        body = {"model": "tiny", "messages": messages, **more}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{self.gateway.url}/v1/chat/completions", json=body) as answer,
        ):
            said = json.loads(await answer.text())
            assert answer.status == 200, said
            return str(said["choices"][0]["message"]["content"])

    async def turns(self) -> list[Any]:
        return list(await self.gateway.rows("SELECT * FROM turns ORDER BY id"))

    async def followed(self, turn_id: UUID) -> tuple[str, UUID, str] | None:
        """(what followed a turn, the turn that brought it, how)."""
        rows = await self.gateway.rows("SELECT * FROM next_states WHERE turn_id = $1", turn_id)
        return (
            (rows[0]["messages"][0]["content"], rows[0]["following_id"], rows[0]["how"])
            if rows
            else None
        )


async def test_what_the_conversation_did_not_go_on_from_was_beside_it(gateway: Gateway) -> None:
    talk = Talk(gateway)
    await talk.ask("The quick brown fox?")
    await talk.beside()
    first, other = await talk.turns()
    # Until more is known, it is what came next.
    assert await talk.followed(first["id"]) == (SUGGEST, other["id"], "continued")
    await talk.ask("lazy")
    first, other, third = await talk.turns()
    assert await talk.followed(first["id"]) == ("lazy", third["id"], "continued")
    assert await talk.followed(other["id"]) is None
    assert [turn["kind"] for turn in (first, other, third)] == ["main", "side", "main"]
    assert other["kind_rule"] == "beside_line"
    verdicts = await gateway.rows("SELECT turn_id, outcome, reason FROM verdicts")
    assert verdicts == [{"turn_id": other["id"], "outcome": "unscored", "reason": "beside_line"}]
    jobs = await JudgeClaims(gateway.services.database).claim(new_id(), 10, 60)
    assert [(job.turn_id, job.next_state[0]["content"]) for job in jobs] == [(first["id"], "lazy")]


async def test_the_same_beside_the_next_reply_is_held_at_once(gateway: Gateway) -> None:
    talk = Talk(gateway)
    await talk.ask("The quick brown fox?")
    await talk.beside()
    await talk.ask("lazy", "the lazy dog")
    await talk.beside("Other words, but the same instructions as before.", says="jumps")
    _, _, third, held = await talk.turns()
    assert (held["kind"], held["kind_rule"]) == ("unknown", "asked_beside_before")
    assert await talk.followed(third["id"]) is None
    await talk.ask("over", "the quick dog")
    _, _, third, held, last = await talk.turns()
    assert await talk.followed(third["id"]) == ("over", last["id"], "continued")
    assert (held["kind"], last["kind"]) == ("side", "main")


async def test_what_was_held_and_went_on_is_told_of_the_turn_before(gateway: Gateway) -> None:
    talk = Talk(gateway)
    await talk.ask("The quick brown fox?")
    await talk.ask("lazy", "the lazy dog", response_format={"type": "json_object"})
    first, held = await talk.turns()
    assert (held["kind"], held["kind_rule"]) == ("unknown", "one_shot_over_history")
    assert await talk.followed(first["id"]) is None
    await talk.ask("over")
    first, held, third = await talk.turns()
    assert (first["kind"], held["kind"]) == ("main", "main")
    assert await talk.followed(first["id"]) == ("lazy", held["id"], "continued")
    assert await talk.followed(held["id"]) == ("over", third["id"], "continued")
    jobs = await JudgeClaims(gateway.services.database).claim(new_id(), 10, 60)
    assert {job.turn_id for job in jobs} == {first["id"], held["id"]}


async def test_a_turn_that_was_judged_by_the_wrong_words_is_judged_again(gateway: Gateway) -> None:
    talk = Talk(gateway)
    await talk.ask("The quick brown fox?")
    await talk.beside()
    claims = JudgeClaims(gateway.services.database)
    assert len(await claims.claim(new_id(), 10, 60)) == 1
    await talk.ask("lazy")
    [again] = await claims.claim(new_id(), 10, 60)
    assert (again.round, again.next_state[0]["content"]) == (2, "lazy")


_SAMPLE = """
INSERT INTO samples (id, turn_id, session_id, lineage_id, method, score, version_min, arrived_at,
    state)
SELECT gen_random_uuid(), id, session_id, lineage_id, 'binary', 1, 0, now(), $2
FROM turns WHERE id = $1
"""


async def test_what_was_learned_from_stays_as_it_was(gateway: Gateway) -> None:
    talk = Talk(gateway)
    await talk.ask("The quick brown fox?")
    await talk.beside()
    first, other = await talk.turns()
    await gateway.services.database.execute(_SAMPLE, first["id"], "trained")
    await gateway.services.database.execute(_SAMPLE, other["id"], "ready")
    await talk.ask("lazy")
    assert await talk.followed(first["id"]) == (SUGGEST, other["id"], "continued")
    [sample] = await gateway.rows(
        "SELECT state, reason FROM samples WHERE turn_id = $1", other["id"]
    )
    assert (sample["state"], sample["reason"]) == ("dropped", "beside_line")


async def test_the_same_words_over_each_reply_are_no_words_taken_back(gateway: Gateway) -> None:
    """With the conversation's own instructions: at first it looks like a user who goes back."""
    talk = Talk(gateway)
    await talk.ask("The quick brown fox?")
    await talk.beside(system=BASE)
    await talk.ask("lazy", "the lazy dog")
    _, other, third = await talk.turns()
    assert await talk.followed(other["id"]) == ("lazy", third["id"], "rolled_back")
    await talk.beside(system=BASE, says="jumps")
    first, other, third, held = await talk.turns()
    assert (other["kind"], held["kind"]) == ("side", "unknown")
    assert await talk.followed(other["id"]) is None
    assert await talk.followed(first["id"]) == ("lazy", third["id"], "continued")
    jobs = await JudgeClaims(gateway.services.database).claim(new_id(), 10, 60)
    assert [(job.turn_id, job.next_state[0]["content"]) for job in jobs] == [(first["id"], "lazy")]


async def test_words_that_a_user_takes_back_stay_on_the_line(gateway: Gateway) -> None:
    talk = Talk(gateway)
    await talk.ask("The quick brown fox?")
    await talk.beside("lazy", system=BASE)
    await talk.ask("quick", "the quick dog")
    first, discarded, third = await talk.turns()
    assert [turn["kind"] for turn in (first, discarded)] == ["main", "main"]
    assert await talk.followed(first["id"]) == ("lazy", discarded["id"], "continued")
    assert await talk.followed(discarded["id"]) == ("quick", third["id"], "rolled_back")


async def test_a_prompt_that_comes_late_is_held(gateway: Gateway) -> None:
    talk = Talk(gateway)
    await talk.ask("The quick brown fox?")
    before = list(talk.history)
    await talk.ask("lazy", "the lazy dog")
    talk.history = before
    await talk.beside()
    first, second, late = await talk.turns()
    assert (late["kind"], late["kind_rule"]) == ("unknown", "beside_line")
    assert await talk.followed(first["id"]) == ("lazy", second["id"], "continued")
    assert await talk.followed(second["id"]) is None


async def test_what_a_client_did_not_wait_for_is_not_what_followed(gateway: Gateway) -> None:
    talk = Talk(gateway)
    await talk.ask("The quick brown fox?")
    gateway.engine.chunk_delay_s = 0.05
    gateway.says("fox " * 100)
    body = {"model": "tiny", "stream": True, "messages": [BASE, *talk.history, user("the laz")]}
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer:
            assert await first_event(answer)
        await gateway.until("SELECT id FROM turns WHERE NOT delivered")
    gateway.engine.chunk_delay_s = 0
    await talk.ask("the lazy dog")
    first, left, third = await talk.turns()
    assert await talk.followed(first["id"]) == ("the lazy dog", third["id"], "continued")
    assert (left["kind"], await talk.followed(left["id"])) == ("main", None)


async def test_turns_of_another_tenant_are_left_alone(gateway: Gateway) -> None:
    talk = Talk(gateway)
    await talk.ask("The quick brown fox?")
    await talk.beside()
    first, other = await talk.turns()
    stranger = new_id()
    turns = gateway.services.turns
    assert await turns.branches(stranger, first["id"]) == []
    assert await turns.asked(stranger, other["id"]) == ((), 0.0)
    state = NextState(
        turn_id=first["id"], tenant_id=stranger, following_id=new_id(),
        messages=(user("lazy"),), role="user", arrived_at=0.0,
    )  # fmt: skip
    await turns.set_beside(stranger, [other["id"]], [other["id"]], state)
    assert [turn["kind"] for turn in await talk.turns()] == ["main", "main"]
    assert await talk.followed(first["id"]) == (SUGGEST, other["id"], "continued")
