"""All weights of a model: masters, reference, export, resume; all weights of both kinds."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gateway.errors import ConfigError, TrainerError
from gateway.records import PolicyKind, TrainingSample
from tests.tiny_llama import VOCAB, drawn, make_llama
from trainer.backends.base import Probe
from trainer.backends.torch_backend import TorchBackend
from trainer.config import LoraSettings, LossSettings, OptimizerSettings, TrainerConfig
from trainer.losses import Size, policy_loss
from trainer.packing import pack

PROBE = Probe((3, 1, 4, 1, 5, 9, 2, 6), 1)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    directory = make_llama(tmp_path_factory.mktemp("llama"), tied=request.param)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def full(model: Path, **changes: object) -> TorchBackend:
    values = {"micro_batch_tokens": 64, "optimizer": OptimizerSettings(lr=1e-3), **changes}
    return TorchBackend(model, TrainerConfig(**values), "cpu", PolicyKind.FULL)


def packed(samples: Sequence[TrainingSample], budget: int = 64):
    gains = [(s.score,) * len(s.sampled_ids) for s in samples]
    return pack(samples, gains, vocab=VOCAB, budget=budget)


def take(backend: TorchBackend, samples: Sequence[TrainingSample], budget: int = 64):
    batch = packed(samples, budget)
    loss = policy_loss(backend._config.loss, Size(batch.samples, batch.tokens))
    return backend.step(batch, loss, lambda: False)


def test_step_equals_a_plain_implementation(model: Path) -> None:
    """With the KL to the base model summed over the vocabulary, and every weight's gradient."""
    backend = full(model, head_chunk=7, loss=LossSettings(opsm_delta=None, veto=None))
    samples = drawn(5)
    take(backend, samples)  # so that policy and reference differ
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    causal = backend._weights.network.causal
    total = torch.zeros(())
    for one in samples:
        ids = torch.tensor([[*one.prompt_ids, *one.sampled_ids]])
        start = len(one.prompt_ids) - 1
        log = torch.log_softmax(causal(ids).logits[0, start:-1] / one.temperature, -1)
        old = torch.log_softmax(base(ids).logits[0, start:-1] / one.temperature, -1).detach()
        chosen = log.gather(-1, torch.tensor(one.sampled_ids)[:, None])[:, 0]
        weight = (chosen.detach() - torch.tensor(one.logprobs)).exp().clamp(max=2)
        surrogate = -(weight * one.score * (chosen - chosen.detach() + 1)).sum()
        kl = (log.exp() * (log - old)).sum()
        total = total + (surrogate + 0.05 * kl) / (5 * 40)
    gradients = torch.autograd.grad(total, list(backend._weights.trained.values()))
    norm = sum(float(g.square().sum()) for g in gradients) ** 0.5
    outcome = take(backend, samples)
    assert outcome.loss == pytest.approx(total.item(), rel=1e-4)
    assert outcome.grad_norm == pytest.approx(norm, rel=1e-4)


def test_the_reference_is_the_base_and_the_policy_comes_back(model: Path) -> None:
    backend = full(model)
    batch = packed(drawn(4))
    before = backend.logprobs(batch)
    take(backend, drawn(4))
    after = backend.logprobs(batch)
    torch.testing.assert_close(backend.reference_logprobs(batch), before)
    torch.testing.assert_close(backend.logprobs(batch), after)
    assert max(float((x - y).abs().max()) for x, y in zip(after, before, strict=True)) > 1e-4
    bare = full(model, loss=LossSettings(kl_coef=0.0))
    take(bare, drawn(4))
    with pytest.raises(TrainerError, match="no reference"):
        bare.reference_logprobs(batch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_process_goes_on_to_the_same_losses(
    model: Path, tmp_path: Path, dtype: str
) -> None:
    batches = [drawn(6, seed) for seed in range(4)]
    whole = full(model, dtype=dtype)
    expected = [take(whole, batch).loss for batch in batches]
    first = full(model, dtype=dtype)
    for batch in batches[:2]:
        take(first, batch)
    policy, state = tmp_path / "policy", tmp_path / "state"
    policy.mkdir()
    state.mkdir()
    first.export(policy)
    first.save(state)
    assert (state / "masters.safetensors").exists() is (dtype == "bfloat16")
    second = full(model, dtype=dtype)
    take(second, drawn(3, seed=50))
    second.load(policy, state)
    assert [take(second, batch).loss for batch in batches[2:]] == expected[2:]
    second.reset()
    assert second.score([PROBE]) == full(model, dtype=dtype).score([PROBE])


def test_steps_too_small_for_bfloat16_add_up_in_the_masters(model: Path) -> None:
    """At a rate of 1e-5 a step is below half a unit in the last place of most weights."""
    backend = full(model, dtype="bfloat16", optimizer=OptimizerSettings(lr=1e-5))
    name = "model.layers.0.mlp.up_proj.weight"
    weight, master = backend._weights.trained[name], backend._optimizer.masters[name]
    assert (weight.dtype, master.dtype) == (torch.bfloat16, torch.float32)
    before = master.detach().clone()
    for _ in range(3):
        take(backend, drawn(4))
    moved = (master.detach() - before).abs()
    assert float(moved.max()) > 2e-5
    torch.testing.assert_close(weight, master.to(torch.bfloat16), rtol=0, atol=0)
    assert (weight.float() == before).float().mean() > 0.5


def test_gradients_do_not_depend_on_the_packing_in_bfloat16(model: Path) -> None:
    """Added up in float32, whatever the number of micro-batches; 2**-8 is bfloat16's own error."""
    norms = [take(full(model, dtype="bfloat16"), drawn(7), budget).grad_norm for budget in (1, 999)]
    assert norms[0] == pytest.approx(norms[1], rel=2**-7)


def test_the_export_is_a_model_that_loads_anywhere(model: Path, tmp_path: Path) -> None:
    backend = full(model)
    take(backend, drawn(4))
    backend.export(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json"}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = list(PROBE.ids)
    log = torch.log_softmax(loaded(torch.tensor([ids])).logits[0, :-1], -1)
    expected = log.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert backend.score([PROBE])[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", [PolicyKind.LORA, PolicyKind.FULL])
def test_all_weights_by_their_names_are_the_policy(
    model: Path, tmp_path: Path, kind: PolicyKind
) -> None:
    config = TrainerConfig(lora=LoraSettings(rank=4), optimizer=OptimizerSettings(lr=1e-2))
    backend = TorchBackend(model, config, "cpu", kind)
    take(backend, drawn(4))
    found = dict(backend.iter_hf_weights())
    stored = load_file(model / "model.safetensors")
    assert {n: w.shape for n, w in found.items()} == {n: w.shape for n, w in stored.items()}
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    plain.load_state_dict(found, strict=False)
    log = torch.log_softmax(plain(torch.tensor([list(PROBE.ids)])).logits[0, :-1], -1)
    expected = log.gather(-1, torch.tensor(PROBE.ids[1:])[:, None])[:, 0].tolist()
    assert backend.score([PROBE])[0] == pytest.approx(expected, abs=1e-5)
    assert backend.kind is kind


def test_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    backend = full(model)
    stored = load_file(model / "model.safetensors")
    name = "model.norm.weight"
    save_file({**stored, name: stored[name][:-1]}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="another shape"):
        backend.load(tmp_path, tmp_path)
    del stored[name]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="holds no"):
        backend.load(tmp_path, tmp_path)


def test_a_snapshot_brings_everything_back(model: Path) -> None:
    backend, twin = full(model, dtype="bfloat16"), full(model, dtype="bfloat16")
    take(backend, drawn(4))
    take(twin, drawn(4))
    before, probe = backend.snapshot(), backend.score([PROBE])
    take(backend, drawn(4, seed=2))
    backend.rewind(before)
    assert backend.score([PROBE]) == probe
    assert take(backend, drawn(5)).loss == take(twin, drawn(5)).loss
