"""Attempts at one task: the group that a rollout names, and how long it is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import openai
import pytest

from gateway.records import Judgement, Role, new_id
from gateway.store.claims import JudgeClaims
from gateway.store.keys import KeyStore
from gateway.store.samples import SampleStore
from tests.fixtures_gateway import Gateway

ASK = [{"role": "user", "content": "The quick brown fox?"}]
WORKER = new_id()


async def key(gateway: Gateway, role: Role) -> str:
    keys = KeyStore(gateway.services.database)
    tenant = await keys.ensure_tenant("one")
    _, secret = await keys.create(tenant, f"of {role}", role, gateway.keys.lineage_id)
    return secret


async def groups(gateway: Gateway) -> list[str | None]:
    return [row["group_id"] for row in await gateway.rows("SELECT group_id FROM turns ORDER BY id")]


async def test_a_rollout_names_its_group_in_a_header_or_in_the_body(gateway: Gateway) -> None:
    for number in range(5):
        gateway.says(f"fox {number}")
    async with gateway.client(await key(gateway, Role.ROLLOUT)) as client:
        create: Any = client.chat.completions.create
        await create(model="tiny", messages=ASK, n=2, extra_headers={"X-Group-Id": "task 7"})
        await create(model="tiny", messages=ASK, extra_body={"metadata": {"group_id": "task 8"}})
        await client.responses.create(
            model="tiny", input="The quick brown fox?", metadata={"group_id": "task 9"}
        )
        await create(model="tiny", messages=ASK, extra_body={"metadata": {"group_id": 8}})
        with pytest.raises(openai.BadRequestError):
            await create(model="tiny", messages=ASK, extra_headers={"X-Group-Id": "x" * 5000})
    assert await groups(gateway) == ["task 7", "task 7", "task 8", "task 9", None]


async def test_an_agents_requests_are_in_no_named_group(gateway: Gateway) -> None:
    gateway.says("fox")
    async with gateway.client() as client:
        await client.chat.completions.create(
            model="tiny", messages=ASK, extra_headers={"X-Group-Id": "task 7"}
        )  # type: ignore[call-overload]
    assert await groups(gateway) == [None]


async def judged(gateway: Gateway, turns: Sequence[UUID], score: float | None) -> None:
    """Queue and finish the jobs of these turns."""
    claims = JudgeClaims(gateway.services.database)
    for turn in turns:
        await claims.rejudge(turn)
        (job,) = await claims.claim(WORKER, 1, 60)
        assert job.turn_id == turn
        await claims.finish(WORKER, job, Judgement(judge="rules", score=score), "grpo")


@pytest.mark.parametrize("named", [True, False])
async def test_a_group_is_open_until_each_member_has_a_verdict(
    gateway: Gateway, named: bool
) -> None:
    """Choices of one request are siblings with and without a name."""
    for number in range(3):
        gateway.says(f"fox {number}")
    headers = {"X-Group-Id": "task", "X-Turn-Type": "main"} if named else {"X-Turn-Type": "main"}
    async with gateway.client(await key(gateway, Role.ROLLOUT)) as client:
        await client.chat.completions.create(model="tiny", messages=ASK, n=3, extra_headers=headers)  # type: ignore[call-overload]
    turns = [row["id"] for row in await gateway.rows("SELECT id FROM turns ORDER BY id")]
    store = SampleStore(gateway.services.database)
    await judged(gateway, turns[:1], 1.0)
    (head,) = await store.window(gateway.keys.lineage_id, 9)
    assert head.group is not None
    assert await store.open_groups([head.turn_id], 600) == {head.group}
    await judged(gateway, turns[1:2], None)  # a verdict, though no score
    assert await store.open_groups([head.turn_id], 600) == {head.group}
    await judged(gateway, turns[2:], -1.0)
    assert await store.open_groups([head.turn_id], 600) == frozenset()
    heads = await store.window(gateway.keys.lineage_id, 9)
    assert [(one.group, one.score) for one in heads] == [(head.group, 1), (head.group, -1)]
