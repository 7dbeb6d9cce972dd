"""Distillation in the back end, against a plain implementation, and what it does to a policy."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import torch

from gateway.records import PolicyKind, PolicyRef, TrainingSample
from tests.tiny_llama import VOCAB, drawn, make_llama, sample, teaching
from trainer.backends.base import Probe
from trainer.backends.torch_backend import TorchBackend
from trainer.config import (
    CreditSettings,
    LoraSettings,
    LossSettings,
    OptimizerSettings,
    TrainerConfig,
)
from trainer.learner import Learner
from trainer.losses import Size, policy_loss
from trainer.packing import defect, minibatches, pack

LOSS = LossSettings(kl_coef=0.0, opsm_delta=None, veto=None, importance="none")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


def settings(**changes: object) -> TrainerConfig:
    lora = LoraSettings(rank=4, alpha=8)
    return TrainerConfig(
        **{"lora": lora, "micro_batch_tokens": 64, "loss": LOSS, "seed": 3, **changes}
    )


def taught(count: int, seed: int = 0, top: int = 0) -> list[TrainingSample]:
    """Every other one has a teaching; the first of these without, the next with `top` tokens."""
    rng = random.Random(seed)
    samples = drawn(count, seed)
    for place in range(0, count, 2):
        reply = samples[place].sampled_ids
        ids = [rng.sample(range(VOCAB), top) for _ in reply] if place % 4 and top else []
        logs = [torch.randn(VOCAB).log_softmax(-1)[row].tolist() for row in ids]
        told = teaching([rng.uniform(-6, -0.1) for _ in reply], ids, logs)
        samples[place] = replace(samples[place], teaching=told)
    return samples


@pytest.mark.parametrize("top", [0, 5])
@pytest.mark.parametrize("chunk", [7, 512])
def test_step_equals_a_plain_implementation(model: Path, top: int, chunk: int) -> None:
    """Whole logits, a sample at a time: the same loss and the same gradients."""
    torch.manual_seed(0)
    backend = TorchBackend(model, settings(head_chunk=chunk), "cpu")
    samples = taught(6, top=top)
    weights = list(backend._weights.trained.values())
    with torch.no_grad():
        for name, weight in backend._weights.trained.items():
            if "lora_B" in name:
                weight.copy_(torch.linspace(-0.1, 0.1, weight.numel()).view_as(weight))
    total = torch.zeros(())
    for one in samples:
        ids = torch.tensor([[*one.prompt_ids, *one.sampled_ids]])
        logits = backend._weights.peft(ids).logits[0, len(one.prompt_ids) - 1 : -1]
        target = torch.tensor(one.sampled_ids)[:, None]
        chosen = (logits / one.temperature).log_softmax(-1).gather(-1, target)[:, 0]
        plain = logits.log_softmax(-1)
        gain = torch.full_like(chosen, 0.25)
        told = one.teaching
        if told is not None and not told.top_ids:
            away = torch.tensor(told.logprobs) - plain.gather(-1, target)[:, 0]
            gain = gain + 2.0 * away.clamp(-1.5, 1.5)
        total = total - (gain.detach() * chosen).sum()
        for row, own, theirs in zip(
            plain, told.top_ids if told else (), told.top_logprobs if told else (), strict=False
        ):
            student, teacher = row[own].exp(), torch.tensor(theirs).exp()
            bins = student * (student / teacher).log()
            left, rest = 1 - student.sum(), 1 - teacher.sum()
            total = total + 2.0 * (bins.sum() + left * (left / rest).log())
    expected = torch.autograd.grad(total / (6 * 40), weights)
    packed = pack(
        samples,
        [(0.25,) * len(s.sampled_ids) for s in samples],
        vocab=VOCAB,
        budget=64,
        taught=[2.0 if s.teaching else 0.0 for s in samples],
        top_k=top > 0,
    )
    loss = policy_loss(LOSS.model_copy(update={"opd_clip": 1.5}), Size(6, 1))
    for micro in packed.micro:
        loss(backend._tokens(micro)).backward()
    for weight, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=2e-3, atol=1e-6)


def test_the_student_is_at_temperature_1_and_as_the_step_begins(model: Path) -> None:
    backend = TorchBackend(model, settings(), "cpu")
    samples = [replace(one, temperature=0.7, teaching=teaching([-1.0] * len(one.sampled_ids)))
               for one in drawn(4)]  # fmt: skip
    first, second = minibatches(
        samples,
        [(0.0,) * len(s.sampled_ids) for s in samples],
        2,
        vocab=VOCAB,
        budget=64,
        taught=[1.0] * 4,
    )
    probes = [
        Probe((*samples[i].prompt_ids, *samples[i].sampled_ids), len(samples[i].prompt_ids))
        for i in second.micro[0].samples.unique_consecutive().tolist()
    ]
    expected = [value for row in backend.score(probes) for value in row]
    student = backend._tokens(second.micro[0]).student
    assert student is not None
    assert not student.requires_grad
    assert student.tolist() == pytest.approx(expected, abs=1e-5)
    # Measured before the first minibatch has moved the policy.
    held = second.with_proximal(
        backend.logprobs(second), backend.logprobs(second.at_temperature(1.0))
    )
    backend.step(first, policy_loss(LOSS, Size(2, 1)), lambda: False)
    now, then = backend._tokens(second.micro[0]).student, backend._tokens(held.micro[0]).student
    assert then is not None
    assert now is not None
    assert then.tolist() == pytest.approx(expected, abs=1e-5)
    assert (now - then).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (teaching([-1.0, -2.0]), None),
        (teaching([-1.0]), "teaching_length_mismatch"),
        (teaching([-1.0, float("nan")]), "teaching_not_finite"),
        (teaching([-1.0, -2.0], [[1], [2]], [[-1.0], [-1.0]]), None),
        (teaching([-1.0, -2.0], [[1]], [[-1.0]]), "teaching_length_mismatch"),
        (teaching([-1.0, -2.0], [[1], [VOCAB]], [[-1.0], [-1.0]]), "id_outside_vocabulary"),
        (teaching([-1.0, -2.0], [[1], [2]], [[-1.0], [-float("inf")]]), "teaching_not_finite"),
    ],
)
def test_a_teaching_of_something_else_is_not_trained_on(told: object, reason: str | None) -> None:
    assert defect(sample((1,), (2, 3), teaching=told), vocab=VOCAB, max_tokens=9) == reason


BASE = PolicyRef(lineage_id=UUID(int=9), version=0, kind=PolicyKind.BASE)


def away(learner: Learner, samples: Sequence[TrainingSample]) -> float:
    """The mean distance of the policy from the teacher on the sampled tokens, in nats."""
    backend = learner._backend
    total = count = 0.0
    for one in samples:
        assert one.teaching is not None
        ids = (*one.prompt_ids, *one.sampled_ids)
        (found,) = backend.score([Probe(ids, len(one.prompt_ids))])
        total += sum(abs(a - b) for a, b in zip(found, one.teaching.logprobs, strict=True))
        count += len(found)
    return total / count


@pytest.mark.parametrize("method", ["opd", "combined"])
@pytest.mark.parametrize("distil", ["sampled", "top_k"])
def test_the_policy_comes_nearer_to_its_teacher(
    model: Path, tmp_path: Path, method: str, distil: str
) -> None:
    """A teacher that is another model; scores of 0 say nothing, so that only it is heard."""
    other = TorchBackend(model, settings(), "cpu")
    with torch.no_grad():
        for weight in other._weights.trained.values():
            weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(5))
    config = settings(
        credit=CreditSettings(method=method, distil=distil),
        optimizer=OptimizerSettings(lr=1e-2),
        loss=LossSettings(kl_coef=0.0, opsm_delta=None, max_step_kl=None, reference_length=4),
    )
    learner = Learner(TorchBackend(model, config, "cpu"), config, tmp_path)
    learner.restore(BASE, None)
    samples = []
    for one in drawn(8, seed=2):
        ids = (*one.prompt_ids, *one.sampled_ids)
        probe = Probe(ids, len(one.prompt_ids))
        (logs,) = other.score([probe])
        (own,) = learner._backend.score([probe])
        with torch.no_grad():
            logits = other._weights.peft(torch.tensor([ids])).logits[0, probe.start - 1 : -1]
        top = logits.log_softmax(-1).topk(8)
        told = teaching(logs, top.indices.tolist(), top.values.tolist())
        samples.append(replace(one, score=0.0, temperature=1.0, logprobs=own, teaching=told))
    before = away(learner, samples)
    metrics = {}
    for _ in range(12):
        metrics = learner.train(samples, lambda: False)
    assert metrics["taught"] == 1
    assert away(learner, samples) < 0.75 * before


def test_without_a_hint_the_teachers_part_is_nothing(model: Path, tmp_path: Path) -> None:
    """Combined on samples without a teaching is binary, to the last bit."""
    found = []
    for method in ("binary", "combined"):
        config = settings(credit=CreditSettings(method=method))
        learner = Learner(TorchBackend(model, config, "cpu"), config, tmp_path)
        learner.restore(BASE, None)
        learner.train(drawn(4), lambda: False)
        found.append(learner.proof().expected)
    assert found[0] == found[1]
