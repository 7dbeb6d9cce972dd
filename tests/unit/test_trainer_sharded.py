"""The torch back end on two ranks: what one process computes, from shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from gateway.errors import ConfigError, NonFinite
from gateway.records import PolicyKind, TrainingSample
from tests.tiny_llama import VOCAB, drawn, make_llama
from tests.tiny_model import make_model
from tests.two_ranks import Ranks, two_ranks
from trainer.backends.base import Probe, StepAbandoned
from trainer.backends.sharding import local, whole
from trainer.backends.torch_backend import TorchBackend
from trainer.config import LoraSettings, LossSettings, TrainerConfig
from trainer.distributed import World, split
from trainer.losses import Size, policy_loss
from trainer.micro_batch import PackedBatch
from trainer.packing import minibatches, pack
from trainer.update import update

FULL, LORA = PolicyKind.FULL, PolicyKind.LORA
PROBE = Probe((1, 2, 3, 4, 5), 2)
#: How far sums in another order may be off, relative to a loss of about 1.
CLOSE = 2e-5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "llama": make_llama(tmp_path_factory.mktemp("llama")),  # one matrix for both ends
        "qwen3": make_model(tmp_path_factory.mktemp("qwen3"), family="qwen3"),
    }


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with two_ranks() as ranks:
        yield ranks


def build(world: World | None, model: Path, kind: PolicyKind, **changes: Any) -> TorchBackend:
    values = {"lora": LoraSettings(rank=4, alpha=8), "optimizer": {"lr": 1e-3}, "head_chunk": 7}
    config = TrainerConfig.model_validate({**values, **changes})
    return TorchBackend(model, config, "cpu", kind, world)


def packed(samples: list[TrainingSample], budget: int = 64) -> PackedBatch:
    gains = [(one.score,) * len(one.sampled_ids) for one in samples]
    return pack(samples, gains, vocab=VOCAB, budget=budget)


def take(backend: TorchBackend, samples: list[TrainingSample], budget: int = 64) -> float:
    batch = packed(samples, budget)
    loss = policy_loss(backend._config.loss, Size(batch.samples, batch.tokens))
    return backend.step(batch, loss, lambda: False).loss


def contents(backend: TorchBackend) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in backend.iter_hf_weights()}


def gradients(backend: TorchBackend, batch: PackedBatch) -> dict[str, Tensor]:
    """Of the batch's negative log-likelihood, as they reach the optimizer."""
    found: dict[str, Tensor] = {}

    def caught(_: float) -> tuple[float, float]:
        for name, weight in backend._weights.trained.items():
            assert weight.grad is not None
            found[name] = whole(weight.grad).clone()
        return 0.0, 0.0

    backend._optimizer.step = caught  # type: ignore[method-assign]
    backend.step(batch, lambda tokens: -tokens.current.sum(), lambda: False)
    return found


# Jobs, as each rank does them.


def job_passes(world: World | None, model: Path, samples: list[TrainingSample]) -> Any:
    backend = build(world, model, FULL)
    batch = packed(samples)
    log = backend.logprobs(batch)
    held = sum(local(weight).numel() for weight in backend._weights.trained.values())
    return log, gradients(backend, batch), held


def job_steps(world: World | None, model: Path, kind: PolicyKind, changes: dict[str, Any]) -> Any:
    backend = build(world, model, kind, **changes)
    losses = [take(backend, drawn(7, seed=3)) for _ in range(5)]
    return losses, contents(backend), backend.score([PROBE])


def job_update(world: World | None, model: Path, kind: PolicyKind) -> Any:
    """Two minibatches, then the whole update halved until it is small."""
    loss = LossSettings(max_step_kl=1e-5, entropy_coef=0.01)
    backend = build(world, model, kind, loss=loss, optimizer={"lr": 1e-2})
    samples = drawn(6, seed=4)
    gains = [(one.score,) * len(one.sampled_ids) for one in samples]
    batches = minibatches(samples, gains, 2, vocab=VOCAB, budget=64)
    return update(backend, batches, loss, lambda: False), contents(backend)


def job_round_trip(world: World, model: Path, out: Path, dtype: str) -> Any:
    backend = build(world, model, FULL, dtype=dtype)
    backend.export(out)
    return contents(backend)


def job_save(world: World | None, model: Path, kind: PolicyKind, root: Path, dtype: str) -> Any:
    backend = build(world, model, kind, dtype=dtype)
    for seed in (1, 2):
        take(backend, drawn(5, seed))
    begun = backend.save(root / "state")
    backend.export(root / "policy")
    begun()
    return [take(backend, drawn(5, seed)) for seed in (3, 4)]


def job_load(world: World | None, model: Path, kind: PolicyKind, root: Path, dtype: str) -> Any:
    backend = build(world, model, kind, dtype=dtype)
    take(backend, drawn(3, seed=9))
    backend.load(root / "policy", root / "state")
    return [take(backend, drawn(5, seed)) for seed in (3, 4)]


def job_back(world: World, model: Path) -> Any:
    backend = build(world, model, FULL)
    take(backend, drawn(4))
    before, there = backend.snapshot(), backend.score([PROBE])
    first = take(backend, drawn(4, seed=2))
    backend.rewind(before)
    assert backend.score([PROBE]) == there
    assert take(backend, drawn(4, seed=2)) == first
    backend.rewind(before)
    loss = policy_loss(LossSettings(), Size(4, 20))
    for error, broken, stop in (
        (NonFinite, lambda tokens: tokens.current.sum() * torch.nan, lambda: False),
        # One rank is asked to stop, and both do.
        (StepAbandoned, loss, lambda: world.rank == 0),
    ):
        with pytest.raises(error):
            backend.step(packed(drawn(4, seed=2)), broken, stop)
        assert backend.score([PROBE]) == there
    assert take(backend, drawn(4, seed=2)) == first
    backend.reset()
    return backend.score([PROBE])


def job_refused(world: World, model: Path) -> None:
    with pytest.raises(ConfigError, match="2 ranks are not a multiple"):
        build(world, model, LORA, distributed={"shard": 3})


def job_bounds(world: World, model: Path) -> list[float]:
    """Seconds after which the groups of two copies give a rank up."""
    sharding = build(world, model, LORA, distributed={"shard": 1})._sharding
    assert sharding is not None
    groups = sharding._mesh.get_all_groups()
    found: list[Any] = [group._get_backend(torch.device("cpu")) for group in groups]
    return [backend.options._timeout.total_seconds() for backend in found]


# Tests.


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_passes_equal_the_plain_model(models: dict[str, Path], ranks: Ranks, family: str) -> None:
    """Log-probabilities within 1e-5 nats, gradients within 1e-5 of their largest."""
    model, samples = models[family], drawn(5, seed=7)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    total = torch.zeros(())
    expected = {}
    for one in samples:
        ids = torch.tensor([[*one.prompt_ids, *one.sampled_ids]])
        logits = plain(ids).logits[0, len(one.prompt_ids) - 1 : -1]
        log = torch.log_softmax(logits / one.temperature, -1)
        chosen = log.gather(-1, torch.tensor(one.sampled_ids)[:, None])[:, 0]
        expected[one.sampled_ids[0], len(one.sampled_ids)] = chosen.detach()
        total = total - chosen.sum()
    total.backward()
    weights = dict(plain.named_parameters())
    size = sum(weight.numel() for weight in weights.values())
    found = [job_passes(None, model, samples), *ranks(job_passes, model, samples)]
    for log, grads, _ in found:
        assert grads.keys() == weights.keys()
        torch.testing.assert_close(
            torch.cat(log).sort().values,
            torch.cat(list(expected.values())).sort().values,
            rtol=0,
            atol=1e-5,
        )
        for name, grad in grads.items():
            reference = weights[name].grad
            assert reference is not None
            assert float((grad - reference).abs().max()) <= 1e-5 * float(reference.abs().max())
    alone, *shares = [held for *_, held in found]
    assert (alone, sum(shares)) == (size, size)
    assert max(shares) < 0.51 * size


STEPS = [
    ("llama", LORA, {}),
    ("llama", FULL, {}),
    ("qwen3", LORA, {"recompute": "layers"}),
    ("qwen3", FULL, {"recompute": "layers"}),
    ("llama", FULL, {"distributed": {"shard": 1}}),
    ("llama", FULL, {"loss": {"kl_coef": 0.0, "aggregate": "token_mean"}}),
]


@pytest.mark.parametrize(("family", "kind", "changes"), STEPS)
def test_five_steps_have_the_same_losses(
    models: dict[str, Path], ranks: Ranks, family: str, kind: PolicyKind, changes: dict[str, Any]
) -> None:
    losses, weights, scores = job_steps(None, models[family], kind, changes)
    assert losses[4] < losses[0] - 5e-4
    for found, theirs, theirs_scores in ranks(job_steps, models[family], kind, changes):
        assert found == pytest.approx(losses, abs=CLOSE)
        assert theirs_scores[0] == pytest.approx(scores[0], abs=1e-3)
        for name, weight in weights.items():
            torch.testing.assert_close(theirs[name], weight, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", [LORA, FULL])
def test_an_update_is_held_small_alike(
    models: dict[str, Path], ranks: Ranks, kind: PolicyKind
) -> None:
    metrics, weights = job_update(None, models["llama"], kind)
    assert metrics["step_share"] < 1
    for found, theirs in ranks(job_update, models["llama"], kind):
        assert found.keys() == metrics.keys()
        assert found["step_share"] == metrics["step_share"]
        for name in ("loss", "grad_norm", "kl", "entropy", "ratio_max", "logprob_diff_max"):
            assert found[name] == pytest.approx(metrics[name], abs=1e-4), name
        for name, weight in weights.items():
            torch.testing.assert_close(theirs[name], weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_come_back_bit_for_bit(
    models: dict[str, Path], ranks: Ranks, tmp_path: Path, dtype: str
) -> None:
    source = tmp_path / "source"
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    plain = AutoModelForCausalLM.from_pretrained(models["qwen3"], dtype=kinds[dtype])
    plain.save_pretrained(source)
    out = tmp_path / "out"
    out.mkdir()
    found, _ = ranks(job_round_trip, source, out, dtype)
    stored = load_file(source / "model.safetensors")
    for theirs in (found, load_file(out / "model.safetensors")):
        assert theirs.keys() == stored.keys()
        for name, weight in stored.items():
            assert theirs[name].dtype == weight.dtype
            assert torch.equal(theirs[name], weight)
    again = AutoModelForCausalLM.from_pretrained(out)
    assert again.dtype == kinds[dtype]


RESUMES = [(FULL, "float32", 2), (FULL, "bfloat16", 2), (LORA, "float32", 2), (FULL, "bfloat16", 1)]


@pytest.mark.parametrize("case", RESUMES)
def test_another_number_of_ranks_goes_on_from_a_checkpoint(
    models: dict[str, Path], ranks: Ranks, tmp_path: Path, case: tuple[PolicyKind, str, int]
) -> None:
    kind, dtype, by = case
    for part in ("policy", "state"):
        (tmp_path / part).mkdir()
    rest = (models["llama"], kind, tmp_path, dtype)
    if by == 2:
        expected, other = ranks(job_save, *rest)
        assert expected == other
        found = [job_load(None, *rest), *ranks(job_load, *rest)]
    else:
        expected = job_save(None, *rest)
        found = ranks(job_load, *rest)
    # In bfloat16 a difference in the order of a sum can be a whole step of a weight's.
    near = CLOSE if dtype == "float32" else 2e-2
    for losses in found:
        assert losses == pytest.approx(expected, abs=near)


def test_nothing_changes_where_a_step_is_not_taken(models: dict[str, Path], ranks: Ranks) -> None:
    expected = build(None, models["llama"], FULL).score([PROBE])
    for found in ranks(job_back, models["llama"]):
        assert found[0] == pytest.approx(expected[0], abs=1e-5)


def test_ranks_make_up_whole_copies(models: dict[str, Path], ranks: Ranks) -> None:
    ranks(job_refused, models["llama"])


def test_groups_of_copies_wait_no_longer_than_all_ranks(
    models: dict[str, Path], ranks: Ranks
) -> None:
    assert ranks(job_bounds, models["llama"]) == [[60.0, 60.0]] * 2


def test_micro_batches_are_dealt_out_evenly() -> None:
    """Longest first, equally many passes each, and every one exactly once."""
    short = drawn(9, seed=1)
    batch = packed([*short, replace(short[0], prompt_ids=tuple(range(60)))], budget=40)
    count = len(batch.micro)
    assert count % 2 == 1
    mine, theirs = (split(batch.micro, rank, 2) for rank in range(2))
    assert len(mine) == len(theirs) == (count + 1) // 2
    assert sorted(at for at, _ in mine + theirs if at is not None) == list(range(count))
    assert [at for at, _ in theirs].index(None) == len(theirs) - 1
    idle = theirs[-1][1]
    assert (idle.targets.numel(), idle.ids.numel()) == (0, 2)
    sizes = [micro.ids.numel() for pair in zip(mine, theirs, strict=True) for _, micro in pair]
    assert sizes[:-1] == sorted((one.ids.numel() for one in batch.micro), reverse=True)
    assert [at for at, _ in split(batch.micro, 0, 1)] == list(range(count))
