"""Tokens that were sampled from some ids only, where the engine told from which."""

import math
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import torch

from tests.tiny_llama import VOCAB, drawn, make_llama, sample
from trainer.backends.torch_backend import TorchBackend
from trainer.backends.vocabulary import among
from trainer.config import LoraSettings, LossSettings, TrainerConfig
from trainer.losses import Size, policy_loss
from trainer.packing import defect, pack


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


def test_among_by_hand() -> None:
    log = torch.tensor([[0.5, 0.25, 0.125, 0.125]] * 3).log().requires_grad_()
    targets = torch.tensor([0, 2, 1])
    kept = torch.tensor([[0, 1, -1], [0, 1, 2], [-1, -1, -1]])
    found = among(log, targets, kept)
    # 1/2 of 3/4, 1/8 of 7/8, and 1/4 of all.
    assert found.tolist() == pytest.approx([math.log(2 / 3), math.log(1 / 7), math.log(1 / 4)])
    (gradient,) = torch.autograd.grad(found.sum(), log)
    assert gradient[0].tolist() == pytest.approx([1 / 3, -1 / 3, 0, 0])
    assert gradient[2].tolist() == [0, 1, 0, 0]
    assert among(log, targets, None).tolist() == pytest.approx(
        [math.log(1 / 2), math.log(1 / 8), math.log(1 / 4)]
    )


@pytest.mark.parametrize("chunk", [3, 512])
def test_step_equals_a_plain_implementation(model: Path, chunk: int) -> None:
    """Logits of all other ids at -inf, as the engine had them; every other sample is not cut."""
    loss = LossSettings(opsm_delta=None, veto=None, kl_coef=0.0)
    config = TrainerConfig(lora=LoraSettings(rank=4), head_chunk=chunk, loss=loss)
    backend = TorchBackend(model, config, "cpu")
    with torch.no_grad():
        for name, weight in backend._weights.trained.items():
            if "lora_B" in name:
                weight.copy_(torch.linspace(-0.1, 0.1, weight.numel()).view_as(weight))
    samples = [replace(one, session_id=UUID(int=i)) for i, one in enumerate(drawn(4))]
    for place in (0, 2):
        one = samples[place]
        kept = [sorted({token, 1, 2, 3 + at}) for at, token in enumerate(one.sampled_ids)]
        samples[place] = replace(one, kept=kept)
    total = torch.zeros(())
    for one in samples:
        ids = torch.tensor([[*one.prompt_ids, *one.sampled_ids]])
        logits = backend._weights.peft(ids).logits[0, len(one.prompt_ids) - 1 : -1]
        if one.kept is not None:
            cut = torch.full_like(logits, -torch.inf)
            for row, ids_kept in enumerate(one.kept):
                cut[row, ids_kept] = 0
            logits = logits + cut
        log = (logits / one.temperature).log_softmax(-1)
        chosen = log.gather(-1, torch.tensor(one.sampled_ids)[:, None])[:, 0]
        weight = (chosen.detach() - torch.tensor(one.logprobs)).exp().clamp(max=2)
        total = total - (weight * one.score * chosen).sum()
    weights = list(backend._weights.trained.values())
    expected = torch.autograd.grad(total / (4 * 40), weights)
    batch = pack(
        samples, [(s.score,) * len(s.sampled_ids) for s in samples], vocab=VOCAB, budget=64
    )
    assert {micro.kept is None for micro in batch.micro} == {False, True}
    for micro in batch.micro:
        policy_loss(loss, Size(4, 1))(backend._tokens(micro)).backward()
    for weight, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-3, atol=1e-7)


def test_what_was_sampled_is_always_among_what_was_kept(model: Path) -> None:
    """So the probabilities of the kept ids sum to 1, and one kept id has probability 1."""
    backend = TorchBackend(model, TrainerConfig(), "cpu")
    one = sample((1, 2, 3), (4,))
    kept = [4, 9, 33]
    found = 0.0
    for token in kept:
        asked = replace(one, sampled_ids=(token,), kept=[kept])
        (log,) = backend.logprobs(pack([asked], [(1.0,)], vocab=VOCAB, budget=64))
        found += math.exp(float(log))
    assert found == pytest.approx(1, abs=1e-5)
    certain = replace(one, kept=[[4]])
    (log,) = backend.logprobs(pack([certain], [(1.0,)], vocab=VOCAB, budget=64))
    assert float(log) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (None, None),
        ([[2, 5], [3]], None),
        ([[2, 5]], "kept_set_mismatch"),
        ([[2, 5], []], "kept_set_mismatch"),
        ([[5], [3]], "kept_set_mismatch"),
        ([[2, VOCAB], [3]], "id_outside_vocabulary"),
        ([[2, -1], [3]], "id_outside_vocabulary"),
    ],
)
def test_sets_that_cannot_be_those_are_not_trained_on(
    kept: list[list[int]] | None, reason: str | None
) -> None:
    assert defect(sample((1,), (2, 3), kept=kept), vocab=VOCAB, max_tokens=9) == reason
