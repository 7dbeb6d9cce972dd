"""Replies that are sampled from some ids only: which these were, from the engine to the trainer."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.records import Judgement, Sampling, new_id
from gateway.store.claims import JudgeClaims
from gateway.store.samples import SampleStore
from tests.fixtures_gateway import Gateway

ASK = [{"role": "user", "content": "The quick brown fox?"}]
WORKER = new_id()


async def say(gateway: Gateway, **body: Any) -> dict[str, Any]:
    """Ask, with what chat completions has no name for; the turn as it is stored."""
    async with gateway.client() as client:
        create: Any = client.chat.completions.create
        await create(
            model="tiny", messages=ASK, max_tokens=12, extra_body=body,
            extra_headers={"X-Turn-Type": "main"},
        )  # fmt: skip
    return dict((await gateway.rows("SELECT * FROM turns ORDER BY id DESC LIMIT 1"))[0])


async def test_a_reply_from_known_ids_is_trained_on(gateway: Gateway) -> None:
    await gateway.services.pool.engines[0].status()
    turn = await say(gateway, top_k=6, top_p=0.9)
    asked = gateway.engine.requests[-1]
    assert (asked["return_sampling_mask"], asked["sampling_logprobs_mode"]) == (True, "selected")
    assert (turn["trainable"], turn["untrainable_reason"]) == (True, None)
    claims = JudgeClaims(gateway.services.database)
    await claims.rejudge(turn["id"])
    (job,) = await claims.claim(WORKER, 1, 60)
    await claims.finish(WORKER, job, Judgement(judge="rules", score=1.0), "binary")
    store = SampleStore(gateway.services.database)
    (head,) = await store.window(turn["lineage_id"], 9)
    (sample,) = await store.load([head.id])
    assert sample.kept is not None
    assert len(sample.kept) == len(sample.sampled_ids) == len(sample.logprobs) > 0
    context = list(sample.prompt_ids)
    for token, row, told in zip(sample.sampled_ids, sample.kept, sample.logprobs, strict=True):
        assert token in row
        assert 1 <= len(row) <= 6
        # By the fake's own model, whose log-probabilities of all ids are exact.
        values = gateway.engine.logprobs(context, None)[list(row)].astype(float)
        chosen = gateway.engine.logprobs(context, None)[token]
        mass = sum(2.718281828459045**value for value in values)
        assert 2.718281828459045**told == pytest.approx(2.718281828459045**chosen / mass, rel=1e-4)
        context.append(token)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"top_p": 0.9}, "top_p_truncated"),
        ({"top_k": 1}, "top_k_truncated"),
        ({"top_k": 5000}, "top_k_truncated"),
        ({"top_k": 6, "presence_penalty": 1.0}, "top_k_truncated"),
        ({"min_p": 0.1}, "min_p_truncated"),
    ],
)
async def test_a_reply_from_unknown_ids_says_why_it_is_not(
    gateway: Gateway, body: dict[str, Any], reason: str
) -> None:
    await gateway.services.pool.engines[0].status()
    turn = await say(gateway, **body)
    assert "return_sampling_mask" not in gateway.engine.requests[-1]
    assert (turn["trainable"], turn["untrainable_reason"], turn["kept"]) == (False, reason, None)


async def test_what_is_not_captured_costs_the_engine_nothing(gateway: Gateway) -> None:
    await gateway.services.pool.engines[0].status()
    async with gateway.client() as client:
        create: Any = client.chat.completions.create
        await create(
            model="tiny", messages=ASK, max_tokens=4, extra_body={"top_k": 6},
            extra_headers={"X-Turn-Type": "side"},
        )  # fmt: skip
    assert "return_sampling_mask" not in gateway.engine.requests[-1]


async def test_an_engine_that_can_no_longer_tell_serves_all_the_same(gateway: Gateway) -> None:
    """It was replaced by one that knows of no such thing since it was asked what it can."""
    await gateway.services.pool.engines[0].status()
    gateway.engine.mask_tokens = None
    turn = await say(gateway, top_k=6)
    assert (turn["trainable"], turn["untrainable_reason"]) == (False, "top_k_truncated")
    assert "return_sampling_mask" in gateway.engine.requests[-2]
    assert "return_sampling_mask" not in gateway.engine.requests[-1]


@pytest.mark.parametrize(
    ("sampling", "bound"),
    [
        (Sampling(temperature=1.0, top_k=6), 6),
        (Sampling(temperature=0.7, top_k=6, top_p=0.9, min_p=0.1), 6),
        (Sampling(temperature=1.0, top_p=0.9), None),
        (Sampling(temperature=1.0, top_k=1), None),
        (Sampling(temperature=1.0, top_k=-1), None),
        (Sampling(temperature=1.0), None),
        (Sampling(temperature=0.0, top_k=6), None),
        (Sampling(temperature=1.0, top_k=6, frequency_penalty=0.5), None),
        (Sampling(temperature=1.0, top_k=6, logit_bias={3: 1.0}), None),
        (Sampling(temperature=1.0, top_k=6, grammar={"regex": "a"}), None),
    ],
)
def test_what_could_be_trained_on_if_the_ids_were_known(
    sampling: Sampling, bound: int | None
) -> None:
    assert sampling.cut_to == bound
