"""The whole loop on the real engine: capture, judge, train, swap, and the next request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from gateway.config import EngineSettings, FreshnessSettings
from gateway.engine.sglang import SglangEngine
from gateway.records import PolicyKind, PolicyRef
from judge.config import JudgeSettings
from judge.worker import run as run_judge
from tests.running import gateway_values, make_keys, running_gateway
from trainer.config import LossSettings, OptimizerSettings, TrainerConfig, TrainerSettings
from trainer.service import run as run_trainer

#: Two float32 forward passes of the same tiny model, by different kernels.
TOLERANCE_NATS = 2e-3

REACTIONS = ("Thanks, that is what I needed.", "Too long, shorter please.")


@pytest.mark.sglang
async def test_what_is_said_next_changes_the_policy(
    database_url: str, tiny_model: Path, sglang_url: str, tmp_path: Path
) -> None:
    keys = await make_keys(database_url, "tiny")
    values = gateway_values(database_url, tiny_model, sglang_url, tmp_path)
    values["freshness"] = FreshnessSettings(batch=4, max_lag=2)
    trained = TrainerSettings(
        **values,
        trainer=TrainerConfig(
            directory=tmp_path / "policies",
            optimizer=OptimizerSettings(lr=5e-3),
            loss=LossSettings(max_step_kl=None),
        ),
    )
    judged = JudgeSettings(**values)
    stop = asyncio.Event()
    async with running_gateway(trained, keys) as gateway:
        async with asyncio.TaskGroup() as group:
            group.create_task(run_judge(judged, stop))
            group.create_task(run_trainer(trained, stop))
            try:
                async with gateway.client() as client:

                    async def converse(number: int) -> None:
                        """Ask until a reply ends by itself and says something, then react."""
                        for attempt in range(40):
                            told = [{"role": "user", "content": f"What is {number}, {attempt}?"}]
                            reply = await client.chat.completions.create(
                                model="tiny",
                                messages=told,
                                max_tokens=40,
                                temperature=0.8,
                                stop=["e", "t"],
                            )
                            said = reply.choices[0]
                            if (
                                said.finish_reason == "stop"
                                and (said.message.content or "").strip()
                            ):
                                break
                        told += [
                            {"role": "assistant", "content": said.message.content},
                            {"role": "user", "content": REACTIONS[number % 2]},
                        ]
                        await client.chat.completions.create(
                            model="tiny", messages=told, max_tokens=4
                        )

                    await asyncio.gather(*(converse(number) for number in range(4)))
                    await gateway.until(
                        "SELECT 1 FROM policies WHERE version = 1 AND state = 'live'",
                        within_s=120,
                    )
                    async with asyncio.timeout(120):
                        while gateway.services.pool.choose(keys.lineage_id, "x")[1].version < 1:
                            await asyncio.sleep(0.05)
                    await client.chat.completions.create(
                        model="tiny",
                        messages=[{"role": "user", "content": "And now?"}],
                        max_tokens=8,
                    )
            finally:
                stop.set()
        first = await gateway.rows("SELECT * FROM turns WHERE depth = 0 ORDER BY id")
        scores = await gateway.rows(
            "SELECT score, rule FROM judgements WHERE state = 'done' ORDER BY score"
        )
        samples = await gateway.rows("SELECT state, version_lag, step_id FROM samples")
        verdicts = await gateway.rows("SELECT outcome, version FROM verdicts")
        [swap] = await gateway.rows("SELECT * FROM swaps")
        [step] = await gateway.rows("SELECT * FROM train_steps")
        [policy] = await gateway.rows("SELECT * FROM policies WHERE version = 1")

    assert [row["score"] for row in scores] == [-1, -1, 1, 1]
    assert [(row["state"], row["version_lag"]) for row in samples] == [("trained", 0)] * 4
    assert {row["step_id"] for row in samples} == {step["id"]}
    assert [(row["outcome"], row["version"]) for row in verdicts] == [("trained", 1)] * 4
    assert (swap["from_version"], swap["to_version"], swap["outcome"]) == (0, 1, "loaded")
    assert swap["probe_max_diff"] < TOLERANCE_NATS
    # What the engine sampled and what the trainer computes are the same policy.
    assert step["metrics"]["logprob_diff_max"] < TOLERANCE_NATS
    assert {turn["version_min"] for turn in first[:-1]} == {0}
    last = first[-1]
    assert last["spans"] == [[1, 0, last["completion_len"]]]

    engine = SglangEngine(EngineSettings(name="again", url=sglang_url))
    live = PolicyRef(lineage_id=keys.lineage_id, version=1, kind=PolicyKind.LORA, uri=policy["uri"])
    base = PolicyRef(lineage_id=keys.lineage_id, version=0, kind=PolicyKind.BASE)
    prompt = np.frombuffer(last["prompt_ids"], "<i4").tolist()
    sampled = np.frombuffer(last["sampled_ids"], "<i4").tolist()
    stored = np.frombuffer(last["logprobs"], "<f4")
    again = await engine.score([*prompt, *sampled], len(prompt), live)
    before = await engine.score([*prompt, *sampled], len(prompt), base)
    await engine.close()
    # Sampled at temperature 1, the engine's own second look must agree; the base must not.
    assert np.abs(stored - again).max() < TOLERANCE_NATS
    assert np.abs(stored - before).max() > 10 * TOLERANCE_NATS
