"""The torch back end on a tiny model: gradients, resume, export, and learning a preference."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from gateway.errors import ConfigError, NonFinite
from gateway.records import TrainingSample
from tests.tiny_llama import VOCAB, drawn, make_llama, sample
from trainer.backends.base import Probe, StepAbandoned
from trainer.backends.shared_rows import keeps_apart
from trainer.backends.torch_backend import TorchBackend
from trainer.config import LoraSettings, LossSettings, OptimizerSettings, TrainerConfig
from trainer.credit import Baseline, assign
from trainer.losses import Size, policy_loss
from trainer.packing import pack


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


def settings(**changes: object) -> TrainerConfig:
    lora = LoraSettings(rank=4, alpha=8)
    return TrainerConfig(**{"lora": lora, "micro_batch_tokens": 64, **changes})


def packed(samples: Sequence[TrainingSample], budget: int = 64, *, shared: bool = False):
    gains = [(s.score,) * len(s.sampled_ids) for s in samples]
    return pack(samples, gains, vocab=VOCAB, budget=budget, shared=shared)


def take(backend: TorchBackend, samples: Sequence[TrainingSample], budget: int = 64):
    batch = packed(samples, budget)
    loss = policy_loss(LossSettings(), Size(batch.samples, batch.tokens))
    return backend.step(batch, loss, lambda: False)


def weights(backend: TorchBackend) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in backend._weights.trained.items()}


def test_step_equals_a_plain_implementation(model: Path) -> None:
    """Whole logits, no packing, no chunks: the same loss and the same gradient norm."""
    backend = TorchBackend(model, settings(head_chunk=7), "cpu")
    samples = drawn(5)
    for _ in range(2):
        take(backend, samples)  # so that policy and reference differ
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    total = torch.zeros(())
    for one in samples:
        ids = torch.tensor([[*one.prompt_ids, *one.sampled_ids]])
        start = len(one.prompt_ids) - 1
        log = torch.log_softmax(
            backend._weights.peft(ids).logits[0, start:-1] / one.temperature, -1
        )
        base = torch.log_softmax(plain(ids).logits[0, start:-1] / one.temperature, -1).detach()
        chosen = log.gather(-1, torch.tensor(one.sampled_ids)[:, None])[:, 0]
        behaviour = torch.tensor(one.logprobs)
        weight = (chosen.detach() - behaviour).exp().clamp(max=2)
        # With one step a batch the ratio is 1 and its gradient that of the log-probability.
        if one.score < 0 and (behaviour - chosen.detach()).mean() > 0.2:
            weight = torch.zeros_like(weight)  # the policy has left this disliked reply already
        if (chosen.detach() - behaviour).min() < math.log(1e-4):
            weight = torch.zeros_like(weight)
        surrogate = -(weight * one.score * (chosen - chosen.detach() + 1)).sum()
        kl = (log.exp() * (log - base)).sum()
        total = total + (surrogate + 0.05 * kl) / (5 * 40)
    gradients = torch.autograd.grad(total, list(backend._weights.trained.values()))
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    outcome = take(backend, samples)
    assert outcome.loss == pytest.approx(total.item(), rel=1e-4)
    assert outcome.grad_norm == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("budget", "chunk"), [(1, 512), (64, 5), (64, 512), (10_000, 512)])
def test_the_step_does_not_depend_on_how_it_is_packed(
    model: Path, budget: int, chunk: int, shared: bool
) -> None:
    one, other = (TorchBackend(model, settings(head_chunk=c), "cpu") for c in (512, chunk))
    samples = [replace(one, session_id=UUID(int=n)) for n, one in enumerate(drawn(7, seed=3))]
    for backend in (one, other):
        with torch.no_grad():
            for name, weight in backend._weights.trained.items():
                if "lora_B" in name:
                    weight.copy_(torch.linspace(-0.1, 0.1, weight.numel()).view_as(weight))
    gradients = []
    for backend, tokens, together in ((one, 200, False), (other, budget, shared)):
        total = torch.zeros(())
        loss = policy_loss(LossSettings(), Size(len(samples), 1))
        batch = packed(samples, tokens, shared=together)
        beside = any(micro.positions is not None for micro in batch.micro)
        assert beside == (together and tokens > 1)
        for micro in batch.micro:
            value = loss(backend._tokens(micro))
            value.backward()
            total = total + value.detach()
        gradients.append([w.grad for w in backend._weights.trained.values()] + [total])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_rows_are_shared_where_the_model_keeps_sequences_apart(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = TorchBackend(model, settings(), "cpu")
    assert backend.shares_rows
    samples = [replace(one, session_id=UUID(int=n)) for n, one in enumerate(drawn(12, seed=4))]
    alone, shared = packed(samples), packed(samples, shared=True)
    assert shared.forward_tokens < alone.forward_tokens
    for find in (backend.logprobs, backend.reference_logprobs):
        values = {}
        for batch in (alone, shared):
            owners = torch.cat([micro.samples for micro in batch.micro])
            found = torch.cat(find(batch))
            values[batch is shared] = [found[owners == n].tolist() for n in range(12)]
        for one, other in zip(values[False], values[True], strict=True):
            assert one == pytest.approx(other, abs=1e-5)

    # One whose layers carry something on, whatever the positions say.
    network = backend._network
    states = type(network).states

    def carried(self, ids, positions=None):
        found = states(self, ids, positions)
        return found + 0.3 * found.cumsum(1)

    monkeypatch.setattr(type(network), "states", carried)
    assert not keeps_apart(network, "cpu")


def test_logprobs_are_at_the_temperature_and_the_reference_is_the_base(model: Path) -> None:
    backend = TorchBackend(model, settings(), "cpu")
    samples = drawn(4, seed=5)
    before = backend.logprobs(packed(samples))
    take(backend, samples)
    after = backend.logprobs(packed(samples))
    reference = backend.reference_logprobs(packed(samples))
    torch.testing.assert_close(reference, before)
    assert max(float((x - y).abs().max()) for x, y in zip(after, before, strict=True)) > 1e-4
    ids = (*samples[0].prompt_ids, *samples[0].sampled_ids)
    (score,) = backend.score([Probe(ids, len(samples[0].prompt_ids))])
    cold = packed([replace(samples[0], temperature=1.0)])
    assert score == pytest.approx(backend.logprobs(cold)[0].tolist(), abs=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resume_gives_the_same_losses(model: Path, tmp_path: Path, dtype: str) -> None:
    batches = [drawn(6, seed) for seed in range(5)]
    whole = TorchBackend(model, settings(dtype=dtype), "cpu")
    expected = [take(whole, batch).loss for batch in batches]
    first = TorchBackend(model, settings(dtype=dtype), "cpu")
    for batch in batches[:2]:
        take(first, batch)
    policy, state = tmp_path / "policy", tmp_path / "state"
    policy.mkdir()
    state.mkdir()
    first.export(policy)
    first.save(state)
    second = TorchBackend(model, settings(seed=99, dtype=dtype), "cpu")
    take(second, drawn(3, seed=50))
    second.load(policy, state)
    assert [take(second, batch).loss for batch in batches[2:]] == expected[2:]
    second.reset()
    fresh = TorchBackend(model, settings(dtype=dtype), "cpu")
    assert second.score([Probe((1, 2, 3), 1)]) == fresh.score([Probe((1, 2, 3), 1)])


def test_on_a_model_in_bfloat16_the_adapter_is_float32_and_learns_the_same(model: Path) -> None:
    """But for the model's own rounding, whatever the micro-batches."""
    rate = OptimizerSettings(lr=5e-3)
    exact, whole, pieces = (
        TorchBackend(model, settings(dtype=dtype, optimizer=rate), "cpu")
        for dtype in ("float32", "bfloat16", "bfloat16")
    )
    assert whole._network.head.weight.dtype == torch.bfloat16
    assert {weight.dtype for weight in whole._weights.trained.values()} == {torch.float32}

    def likely(backend: TorchBackend) -> float:
        (log,) = backend.score([Probe((1, 2, 3, 4, 5, 6), 1)])
        return sum(log)

    before = [likely(backend) for backend in (exact, whole, pieces)]
    for seed in range(4):
        norm = take(exact, drawn(7, seed), 999).grad_norm
        for backend, budget in ((whole, 999), (pieces, 1)):
            found = take(backend, drawn(7, seed), budget).grad_norm
            assert found == pytest.approx(norm, rel=0.03)
    moved = [likely(one) - old for one, old in zip((exact, whole, pieces), before, strict=True)]
    assert abs(moved[0]) > 0.3
    assert moved[1:] == pytest.approx([moved[0]] * 2, rel=0.25)


def test_warm_up_goes_on_after_a_resume(model: Path, tmp_path: Path) -> None:
    config = settings(optimizer=OptimizerSettings(lr=1e-3, warmup_steps=4))
    backend = TorchBackend(model, config, "cpu")
    rates = [take(backend, drawn(2)).lr for _ in range(2)]
    backend.export(tmp_path)
    backend.save(tmp_path)
    resumed = TorchBackend(model, config, "cpu")
    resumed.load(tmp_path, tmp_path)
    rates += [take(resumed, drawn(2)).lr for _ in range(3)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])


def test_the_export_is_a_peft_adapter(model: Path, tmp_path: Path) -> None:
    backend = TorchBackend(model, settings(), "cpu")
    take(backend, drawn(4))
    backend.export(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, tmp_path)
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    log = torch.log_softmax(loaded(torch.tensor([ids])).logits[0, :-1], -1)
    expected = log.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert backend.score([Probe(tuple(ids), 1)])[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "lora", [LoraSettings(rank=8), LoraSettings(rank=4, target_modules=("q_proj",))]
)
def test_another_shape_of_adapter_is_refused(
    model: Path, tmp_path: Path, lora: LoraSettings
) -> None:
    other = TorchBackend(model, settings(lora=lora), "cpu")
    other.export(tmp_path)
    other.save(tmp_path)
    with pytest.raises(ConfigError):
        TorchBackend(model, settings(), "cpu").load(tmp_path, tmp_path)


@pytest.mark.parametrize("failure", ["not_finite", "abandoned"])
def test_a_step_that_fails_changes_nothing(model: Path, failure: str) -> None:
    backend = TorchBackend(model, settings(), "cpu")
    before = weights(backend)
    good = policy_loss(LossSettings(), Size(6, 1))
    calls = iter([False, True, True, True])
    if failure == "not_finite":
        with pytest.raises(NonFinite):
            backend.step(packed(drawn(6)), lambda t: good(t) * float("inf"), lambda: False)
    else:
        with pytest.raises(StepAbandoned):
            backend.step(packed(drawn(6)), good, lambda: next(calls))
    assert all(torch.equal(value, before[name]) for name, value in weights(backend).items())
    fresh = TorchBackend(model, settings(), "cpu")
    assert take(backend, drawn(6)).loss == take(fresh, drawn(6)).loss


def test_gradients_are_clipped(model: Path) -> None:
    config = settings(optimizer=OptimizerSettings(max_grad_norm=1e-3))
    backend = TorchBackend(model, config, "cpu")
    outcome = take(backend, drawn(6))
    assert outcome.grad_norm > 1e-3
    moments = [
        backend._optimizer.adam.state[w]["exp_avg"] for w in backend._weights.trained.values()
    ]
    # After one step the first moment is (1 - beta1) times the clipped gradient.
    norm = math.sqrt(sum(float(m.square().sum()) for m in moments)) / 0.1
    assert norm == pytest.approx(1e-3, rel=1e-2)


def test_models_it_cannot_reproduce_are_refused(model: Path) -> None:
    with pytest.raises(ConfigError):
        TorchBackend(model, settings(lora=LoraSettings(target_modules=("lm_head",))), "cpu")


def test_learns_a_preference(model: Path) -> None:
    """Replies of four tokens, liked when the last is below 32: from chance to 0.9 and more."""
    config = settings(
        optimizer=OptimizerSettings(lr=1e-2), micro_batch_tokens=4096,
        loss=LossSettings(kl_coef=0.01, reference_length=4),
    )  # fmt: skip
    backend = TorchBackend(model, config, "cpu")
    generator = torch.Generator().manual_seed(11)
    baseline = Baseline()

    def rollout(count: int) -> list[TrainingSample]:
        prompts = torch.randint(0, VOCAB, (count, 3), generator=generator)
        ids, log = prompts, []
        with torch.no_grad():
            for _ in range(4):
                step = torch.log_softmax(backend._weights.peft(ids).logits[:, -1], -1)
                token = torch.multinomial(step.exp(), 1, generator=generator)
                log.append(step.gather(-1, token))
                ids = torch.cat([ids, token], 1)
        return [
            sample(
                ids[row, :3].tolist(), ids[row, 3:].tolist(), temperature=1.0,
                logprobs=torch.cat(log, 1)[row].tolist(),
                score=1.0 if ids[row, -1] < 32 else -1.0,
            )
            for row in range(count)
        ]  # fmt: skip

    def liked(samples: Sequence[TrainingSample]) -> float:
        return sum(one.score > 0 for one in samples) / len(samples)

    assert 0.3 < liked(rollout(256)) < 0.7
    for _ in range(40):
        samples = rollout(32)
        credit = assign(samples, baseline, config.credit)
        baseline = credit.baseline
        gains = [
            (gain,) * len(one.sampled_ids)
            for one, gain in zip(samples, credit.advantages, strict=True)
        ]
        batch = pack(samples, gains, vocab=VOCAB, budget=backend.budget)
        size = Size(batch.samples, batch.tokens)
        backend.step(batch, policy_loss(config.loss, size), lambda: False)
    assert liked(rollout(256)) >= 0.9


def test_turns_of_a_session_are_one_sequence_with_the_same_gradients(model: Path) -> None:
    """50 turns, each continuing the one before: one row, and what 50 rows would give."""
    rng, samples, prompt = random.Random(6), [], [1, 2, 3]
    for _ in range(50):
        reply = [rng.randrange(VOCAB) for _ in range(2)]
        log = [rng.uniform(-6, -3) for _ in reply]
        samples.append(sample(list(prompt), reply, logprobs=log, score=rng.choice((-1.0, 1.0))))
        prompt += [*reply, rng.randrange(VOCAB)]
    backend = TorchBackend(model, settings(), "cpu")
    take(backend, drawn(4))
    chained = packed(samples, budget=8192)
    assert [len(micro.ids) for micro in chained.micro] == [1]
    apart = packed([replace(s, session_id=UUID(int=i)) for i, s in enumerate(samples)], 8192)
    assert sum(len(micro.ids) for micro in apart.micro) == 50
    assert chained.forward_tokens * 20 < apart.forward_tokens
    gradients = []
    for batch in (chained, apart):
        loss = policy_loss(LossSettings(opsm_delta=None), Size(batch.samples, batch.tokens))
        total = torch.zeros(())
        for micro in batch.micro:
            value = loss(backend._tokens(micro))
            value.backward()
            total = total + value.detach()
        gradients.append([w.grad.clone() for w in backend._weights.trained.values()] + [total])
        for weight in backend._weights.trained.values():
            weight.grad = None
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_a_snapshot_brings_everything_back_and_half_an_update_is_half(model: Path) -> None:
    backend, twin = (TorchBackend(model, settings(), "cpu") for _ in range(2))
    take(backend, drawn(4))
    take(twin, drawn(4))
    before, kept = backend.snapshot(), weights(backend)
    take(backend, drawn(4, seed=2))
    moved = weights(backend)
    backend.shrink(before, 0.5)
    for name, value in weights(backend).items():
        torch.testing.assert_close(value, (kept[name] + moved[name]) / 2)
    backend.rewind(before)
    assert all(torch.equal(value, kept[name]) for name, value in weights(backend).items())
    # The moments are back too: both go on to the same numbers.
    assert take(backend, drawn(5)).loss == take(twin, drawn(5)).loss
    assert all(torch.equal(v, weights(twin)[name]) for name, v in weights(backend).items())


def test_entropy_carries_a_gradient_where_it_is_paid_for(model: Path) -> None:
    plain, paid = LossSettings(), LossSettings(entropy_coef=0.5)
    batch = packed(drawn(3))
    for config, carries in ((plain, False), (paid, True)):
        tokens = TorchBackend(model, settings(loss=config), "cpu")._tokens(batch.micro[0])
        assert tokens.entropy.requires_grad is carries


def test_a_measured_proximal_policy_is_the_one_that_is_used(model: Path) -> None:
    backend = TorchBackend(model, settings(), "cpu")
    batch = packed(drawn(3))
    start = backend.logprobs(batch)
    given = batch.with_proximal([log - 0.25 for log in start])
    for micro, log in zip(given.micro, start, strict=True):
        torch.testing.assert_close(backend._tokens(micro).proximal, log - 0.25)
