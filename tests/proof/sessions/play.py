"""Plays planned sessions against a gateway whose engine is watched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.proof.sessions.plan import Plan, Turn
from tests.proof.sessions.players import Player, Said, player

_TIMEOUT = aiohttp.ClientTimeout(total=300)


@dataclass
class Played:
    """`said` holds what clients read, by the id of the turn; `asked` counts replies asked for."""

    said: dict[str, Said] = field(default_factory=dict)
    asked: int = 0


async def play(
    url: str, key: str, plans: Sequence[Plan], *, at_once: int, beginning: str = ""
) -> Played:
    """Play all, some at once. `beginning` begins each first message, to tell sessions apart."""
    played, places = Played(), asyncio.Semaphore(at_once)
    async with aiohttp.ClientSession(
        timeout=_TIMEOUT, headers={"authorization": f"Bearer {key}"}
    ) as http:

        async def one(plan: Plan) -> None:
            async with places:
                await _session(http, url, plan, played, f"{beginning}{plan.number}: ")

        async with asyncio.TaskGroup() as group:
            for plan in plans:
                group.create_task(one(plan))
    return played


async def _session(
    http: aiohttp.ClientSession, url: str, plan: Plan, played: Played, beginning: str
) -> None:
    client = player(plan.dialect)
    owed = False
    for index, turn in enumerate(plan.turns):
        if turn.edit:
            client.edit()
        # Results of tools are an answer by themselves; every other time the user adds a word.
        if not owed or index % 2 or turn.edit:
            client.ask(turn.ask if index else beginning + turn.ask)
        said = await _reply(http, url, client, turn, {})
        played.asked += turn.choices
        if turn.retry:
            if said.id:
                played.said[said.id] = said
            said = await _reply(http, url, client, turn, {"x-stainless-retry-count": "1"})
            played.asked += turn.choices
        if said.id:
            played.said[said.id] = said
        client.hear(said, turn.results[: len(said.calls)])
        owed = bool(said.calls)


async def _reply(
    http: aiohttp.ClientSession, url: str, client: Player, turn: Turn, headers: dict[str, str]
) -> Said:
    async with http.post(url + client.path, json=client.body(turn), headers=headers) as answer:
        text = (await answer.read()).decode()
        assert answer.status == 200, text
    if not turn.stream:
        return client.read(json.loads(text))
    return client.read(client.put_together(_events(text)))


def _events(text: str) -> list[dict[str, Any]]:
    payloads = [line[5:].strip() for line in text.split("\n") if line.startswith("data:")]
    return [json.loads(payload) for payload in payloads if payload != "[DONE]"]
