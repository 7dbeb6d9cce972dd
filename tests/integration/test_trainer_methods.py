"""Every method through the whole loop: distillation, its combination, groups, all weights."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest
import torch
from transformers import AutoModelForCausalLM

from gateway.records import FinishReason, PolicyKind, PolicyRef, Teaching, TurnRecord
from gateway.store.policies import PolicyStore
from tests.fixtures_engine import free_port
from tests.tiny_llama import teaching
from tests.tiny_model import make_model
from tests.torch_engine import FullEngine
from tests.training import World, open_world


@pytest.fixture
async def world(
    database_url: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cpu")
    async with open_world(database_url, tiny_model, tmp_path) as world:
        yield world


class Master:
    """A teacher: another model of the same vocabulary, which remembers what it was shown."""

    def __init__(self, directory: Path, top: int = 0) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            make_model(directory, seed=9), dtype=torch.float32
        )
        self._top = top
        self.shown: list[tuple[TurnRecord, Teaching]] = []

    @torch.no_grad()
    def __call__(self, of: TurnRecord) -> Teaching:
        ids = [*of.prompt_ids, *of.sampled_ids]
        logits = self._model(torch.tensor([ids])).logits[0, len(of.prompt_ids) - 1 : -1]
        log = logits.log_softmax(-1)
        chosen = log.gather(-1, torch.tensor(of.sampled_ids)[:, None])[:, 0]
        likely = log.topk(self._top)
        told = teaching(
            chosen.tolist(),
            likely.indices.tolist() if self._top else (),
            likely.values.tolist() if self._top else (),
        )
        self.shown.append((of, told))
        return told


async def away(world: World, master: Master, policy: PolicyRef) -> float:
    """Mean distance of a served version from the teacher on the sampled tokens, in nats."""
    gaps: list[float] = []
    for of, told in master.shown:
        ids = [*of.prompt_ids, *of.sampled_ids]
        found = await world.engine.score(ids, len(of.prompt_ids), policy)
        gaps += [abs(a - b) for a, b in zip(found, told.logprobs, strict=True)]
    return sum(gaps) / len(gaps)


@pytest.mark.parametrize(("method", "top"), [("opd", 0), ("combined", 0), ("opd", 6)])
async def test_what_is_served_comes_nearer_to_the_teacher(
    world: World, tmp_path: Path, method: str, top: int
) -> None:
    """Scores are 0, so that combined has nothing but its teacher either."""
    master = Master(tmp_path / "teacher", top)
    distil = "top_k" if top else "sampled"
    world.configure(
        credit={"method": method, "distil": distil},
        optimizer={"lr": 2e-2},
        loss={"kl_coef": 0.0, "reference_length": 4, "opsm_delta": None, "veto": None},
    )
    async with world.training():
        for version in range(3):
            await world.judged(4, version=version, score=0.0, method=method, teach=master)
            await world.until(lambda version=version: _is(world, version + 1))
        policies = PolicyStore(world.database)
        live = await policies.live_of(world.lineage)
        base = PolicyRef(lineage_id=world.lineage, version=0, kind=PolicyKind.BASE)
        before, after = await away(world, master, base), await away(world, master, live)
    assert after < 0.9 * before
    steps = await world.step_metrics()
    assert [step["taught"] for step in steps] == [1, 1, 1]
    assert "opd_reverse_kl" in steps[0]
    assert ("distilled_kl" in steps[0]) is (top > 0)
    assert await world.steps_of_samples() == [1] * 12


async def test_distillation_alone_drops_turns_without_a_teaching(
    world: World, tmp_path: Path
) -> None:
    master = Master(tmp_path / "teacher")
    world.configure(credit={"method": "opd"})
    bare = await world.judged(2, method="opd")
    taught = await world.judged(4, method="opd", teach=master)
    async with world.training():
        await world.until(lambda: _is(world, 1))
    assert await world.reasons() == dict.fromkeys(bare, "no_teaching") | dict.fromkeys(
        taught, "trained"
    )
    (step,) = await world.step_metrics()
    assert step["dropped_no_teaching"] == 2


async def test_both_together_train_on_scores_and_on_what_is_taught(
    world: World, tmp_path: Path
) -> None:
    master = Master(tmp_path / "teacher")
    world.configure(credit={"method": "combined"})
    scored = await world.judged(2, method="combined")
    hinted = await world.judged(2, method="combined", score=0.0, teach=master)
    async with world.training():
        await world.until(lambda: _is(world, 1))
    assert await world.reasons() == dict.fromkeys([*scored, *hinted], "trained")
    (step,) = await world.step_metrics()
    tokens = sum(len(of.sampled_ids) for of, _ in master.shown)
    assert step["taught"] == pytest.approx(tokens / step["tokens"])


async def test_a_turn_is_trained_once_whatever_the_method(world: World) -> None:
    """Judged again for another method while its sample waits, and after it was trained."""
    turns = await world.judged(4)
    await _again(world, turns[:1])
    async with world.training():
        await world.until(lambda: _is(world, 1))
        await _again(world, turns[1:2])
        await world.until(lambda: _dropped(world, 2))
    rows = await world.database.fetch(
        "SELECT turn_id, method, state, reason FROM samples ORDER BY arrived_at, method"
    )
    assert [tuple(row) for row in rows if row["method"] == "combined"] == [
        (turn, "combined", "dropped", "repeated") for turn in turns[:2]
    ]
    assert [row["state"] for row in rows if row["method"] == "binary"] == ["trained"] * 4
    assert set((await world.reasons()).values()) == {"trained"}


async def _again(world: World, turns: Sequence[UUID]) -> None:
    await world.database.execute(
        "INSERT INTO samples (id, turn_id, session_id, lineage_id, method, score, version_min,"
        " arrived_at) SELECT gen_random_uuid(), turn_id, session_id, lineage_id, 'combined', score,"
        " version_min, arrived_at FROM samples WHERE turn_id = ANY($1::uuid[])",
        list(turns),
    )


async def _dropped(world: World, count: int) -> bool:
    found = await world.database.fetchval("SELECT count(*) FROM samples WHERE reason = 'repeated'")
    return bool(found == count)


async def test_groups_are_trained_whole_and_flat_ones_not_at_all(world: World) -> None:
    # Turns of these tests arrive in 2001.
    world.configure(credit={"method": "grpo"}, group_wait_s=2e9)
    flat = await world.judged(2, score=1.0, method="grpo", group_id="flat")
    # Of four members one has no verdict yet: it is not even judged.
    waiting = await world.judged(3, method="grpo", group_id="late")
    late = await world.unjudged(group_id="late")
    ready = await world.judged(4, method="grpo", group_id="ready")
    async with world.training():
        await world.until(lambda: _is(world, 1))
        assert await world.reasons() == dict.fromkeys(flat, "group_flat") | dict.fromkeys(
            ready, "trained"
        )
        await world.judge(late, 1.0, "grpo")
        await world.until(lambda: _is(world, 2))
    assert await world.reasons() == dict.fromkeys(flat, "group_flat") | dict.fromkeys(
        [*ready, *waiting, late.id], "trained"
    )
    first, second = await world.step_metrics()
    assert (first["groups_dropped"], second["groups_dropped"]) == (1, 0)
    assert (first["samples"], second["samples"]) == (4, 4)


async def test_a_group_whose_time_is_over_is_taken_as_it_is(world: World) -> None:
    world.configure(credit={"method": "grpo"}, group_wait_s=0.01)
    turns = await world.judged(4, method="grpo", group_id="late")
    await world.unjudged(group_id="late")
    async with world.training():
        await world.until(lambda: _is(world, 1))
    assert await world.reasons() == dict.fromkeys(turns, "trained")


async def test_metrics_of_a_step_are_stored_and_served(world: World) -> None:
    port = free_port()
    world.configure(metrics_port=port)
    await world.judged(1, finish_reason=FinishReason.ABORT)
    await world.judged(4)
    await world.judged(1)
    async with world.training():
        await world.until(lambda: _is(world, 1))
        text = await asyncio.to_thread(_fetch, f"http://127.0.0.1:{port}/metrics")
    (step,) = await world.step_metrics()
    lineage = world.lineage.hex
    shown = {
        line.split('figure="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("nextstate_trainer_step{")
    }
    assert shown == pytest.approx(step)
    assert f'nextstate_trainer_steps_total{{lineage="{lineage}",outcome="trained"}} 1.0' in text
    assert text.index("nextstate_trainer_logprob_difference") == text.index("nextstate_trainer_")
    assert step.keys() >= {
        "logprob_diff_mean", "mismatch_kl", "perplexity_ratio", "chi2_token", "chi2_sequence",
        "importance_mean", "importance_capped", "ess", "ratio_max", "clip_fraction", "ppo_kl",
        "opsm", "vetoed", "entropy", "kl", "step_s", "share_train", "share_claim",
        "score_before", "score_after", "truncated", "lag_mean", "lag_0", "buffered", "waiting",
    }  # fmt: skip
    assert (step["lag_0"], step["buffered"], step["dropped_aborted"]) == (4, 1, 1)
    assert (step["score_mean"], step["score_before"], step["score_after"]) == (0, 0, 0)
    shares = {name: share for name, share in step.items() if name.startswith("share_")}
    assert 0 < shares["share_train"] < 1
    assert sum(shares.values()) <= 1


async def test_what_is_stale_is_reported_by_how_late_it_was_answered(world: World) -> None:
    world.settings = world.settings.model_copy(
        update={"freshness": world.settings.freshness.model_copy(update={"max_lag": 0})}
    )
    async with world.training():
        await world.judged(4)
        await world.until(lambda: _is(world, 1))
        for late_s in (30, 3000, 3600, 86_401):
            # Arrivals count up from 1e9: these are after 29, 3000, 3601 and 86403 seconds.
            await world.judged(1, created_at=1e9 + 5 - late_s)
        await world.judged(4, version=1)
        await world.until(lambda: _is(world, 2))
    step = (await world.step_metrics())[1]
    assert step["dropped_stale"] == 4
    found = {name: count for name, count in step.items() if name.startswith("stale_")}
    assert found == dict.fromkeys(
        ("stale_within_minute", "stale_within_hour", "stale_within_day", "stale_after_day"), 1
    )


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url) as response:
        return str(response.read().decode())


async def test_a_lineage_of_kind_full_is_trained_and_resumed(
    world: World, tiny_model: Path
) -> None:
    await world.database.execute("UPDATE lineages SET kind = 'full'")
    world.configure(optimizer={"lr": 1e-3}, publish={"probe_sequences": 4})
    engine = FullEngine(tiny_model)
    for version in range(2):
        await world.judged(4, version=version)
        async with world.training(engine):
            await world.until(lambda version=version: _is(world, version + 1))
    live = await PolicyStore(world.database).live_of(world.lineage)
    assert (live.version, live.kind) == (2, PolicyKind.FULL)
    assert engine.loaded == [1, 2]
    assert live.uri is not None
    wanted = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    assert [
        name for name in wanted if not await asyncio.to_thread((Path(live.uri) / name).is_file)
    ] == []
    (difference,) = await world.database.fetch(
        "SELECT max(probe_max_diff) AS most FROM swaps WHERE outcome = 'loaded'"
    )
    assert difference["most"] < 1e-3
    assert (await world.step_metrics())[1]["kl"] > 0  # the reference is still version 0


async def _is(world: World, version: int) -> bool:
    return await world.live() == version
